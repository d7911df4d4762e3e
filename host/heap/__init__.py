"""Blocks of the wire format → the blocks still held and their stacks (Capture in, Survivors out)."""
