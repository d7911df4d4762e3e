"""Inline hooks: what of a function is moved, where to, and what undoes it."""
