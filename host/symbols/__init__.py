"""Symbols. In: a module and a vaddr. Out: its function, file and line, from symbol tables, debug files and caches."""
