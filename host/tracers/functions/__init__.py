"""Which functions a name means: requests, symbol tables, demangled names, globs."""
