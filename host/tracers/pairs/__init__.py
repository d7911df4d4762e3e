"""Which functions of a target a pair set means, and by which route each is reached."""
