"""Talking to memleakd: what it is told (lines), how its blocks are read, how it ends."""
