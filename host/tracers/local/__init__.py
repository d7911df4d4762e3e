"""Starting a tracer on this machine: bpf, preload, attach, kernel, every process; which of them."""
