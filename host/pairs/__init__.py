"""Acquire and release of anything (`--pairs`): what a file says, and which functions of a target that is."""
