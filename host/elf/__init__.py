"""ELF files as bytes: sections, dynamic section, slots, libraries inside APKs (to become one reader)."""
