"""Recordings (*.memleak). In: a file or a finished session. Out: its Profile, or the finished file."""
