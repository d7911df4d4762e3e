"""The live view of a session (`--live`): what it shows, as messages, and the process that draws it on the terminal."""
