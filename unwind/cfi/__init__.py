"""Call frame information: .eh_frame, .debug_frame and .ARM.exidx of an ELF file in, unwind rows by vaddr out."""
