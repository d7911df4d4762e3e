"""Unwind rows from machine code without CFI: the code up to a return, prologues. Code bytes in, rows out."""
