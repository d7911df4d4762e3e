"""ELF files, and libraries inside APKs, as bytes in; segments, sections, symbols and slots out."""
