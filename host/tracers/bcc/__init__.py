"""The tracer `bcc`: counts live blocks with their stacks by programs that Debian's python3-bpfcc compiles at run time.

It runs as `python -m memleak_android.host.tracers.bcc`. Comes in: one line of JSON (session.Request); goes out: wire blocks.
Its compiler may crash, so it is a process of its own. It shares no code with the BPF tracer: tests compare the two.
"""
