"""Inline hooks. In: a running process and functions. Out: patches that redirect the functions, and their moved instructions."""
