"""Module + vaddr -> function, file, line: symbol tables, debug files, demangling, caches."""
