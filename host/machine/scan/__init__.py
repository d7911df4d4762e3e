"""Stopping a process once and finding the words that may refer to a block."""
