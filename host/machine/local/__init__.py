"""This machine: processes, what ld.so would load, capabilities, child agents."""
