"""The verbs of the command line: one thin file each, options in, exit code out."""
