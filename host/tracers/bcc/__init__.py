"""The tracer `bcc`: the accounting of the BPF tracer, compiled at run time by Debian's python3-bpfcc.

It runs as `python -m memleak_android.host.tracers.bcc`. Comes in: the agent's configuration lines; goes out: wire blocks
(docs/wire-protocol.md §8). Its compiler may crash, so it is a process of its own. It shares no code with the BPF tracer:
tests compare the two.
"""
