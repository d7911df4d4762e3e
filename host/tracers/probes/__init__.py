"""An ELF file and an allocator's functions in; uprobes at their cheapest offsets out."""
