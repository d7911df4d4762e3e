"""A channel to memleakd and options in; configuration lines to it, wire blocks from it."""
