"""Offline snapshot folders, and ELF files found in memory."""
