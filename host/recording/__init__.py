"""The *.memleak file: its container, reading one into a Profile, writing a finished one."""
