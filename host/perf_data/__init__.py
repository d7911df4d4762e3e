"""perf.data files (`perf record --call-graph dwarf`) of any machine: a path in, unwound and named samples out.

container.py finds the records, layout.py turns samples into columns, processes.py knows what was mapped when,
files.py finds the ELF files, stacks.py unwinds. Format: tools/perf/Documentation/perf.data-file-format.txt and
include/uapi/linux/perf_event.h of the kernel.
"""
