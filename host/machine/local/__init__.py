"""This machine. In: a pid or a command. Out: its processes, the files that ld.so would load, capabilities, child agents."""
