"""The verb snoop: function names and options in, every call of these functions out: lines, JSON, traces, statistics."""
