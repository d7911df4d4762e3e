"""From registers and stack bytes to frames, one stack or many at once."""
