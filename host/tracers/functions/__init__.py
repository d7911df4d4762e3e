"""Names of functions in; the functions of ELF files that they mean out, by symbol, demangled name or glob."""
