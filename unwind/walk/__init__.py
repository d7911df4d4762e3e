"""Samples in, frames out: one stack (step.py), or many at once with the compiled engine (batch.py)."""
