"""Tracers on this machine. In: session options. Out: an agent session by bpf, preload, attach, kernel or every process."""
