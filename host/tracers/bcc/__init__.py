"""The tracer `bcc`: the accounting of the BPF tracer, compiled at run time by Debian's python3-bpfcc.

A process of its own (`python -m memleak_android.host.tracers.bcc`), with the input and the output of memleakd
(docs/wire-protocol.md §8): what it compiles with is a C compiler, and may end with it. It shares no code with our BPF
object, which is why the tests hold the two against each other.
"""
