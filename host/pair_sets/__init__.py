"""What acquires and what releases, as tables: the shipped sets, the heap's among them, and the files of `--pairs`."""
