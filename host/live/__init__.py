"""The live view of a session (`--live`): its messages, and the process that draws them on the terminal."""
