"""An off-line unwinder: captured registers, stack bytes and modules in, frames out.

It does not symbolize, attach to processes, open files (the caller's ModuleSource does) or read memory outside the
captured slices. Each trace has the reason why it ends (TraceEnd), each frame the evidence that it was found by
(Method). Without CFI that is the machine code up to the function's return (PROLOGUE), or the frame pointer if the
code uses one (FP). Both are checked.

    class Files:                                        # a ModuleSource
        def module(self, space, mapping):
            return Module.from_path(mapping.path) if mapping.path.startswith("/") else None

    arch = arch_by_name("x86_64")
    samples = SampleBatch(arch, registers, known, stack_address, stack_offset, stack_length,
                          stack_bytes, space, at_return)
    traces = unwind_batch(samples, [AddressSpace(mappings)], Files())
    first = traces.address[traces.offsets[0] : traces.offsets[1]]   # innermost first
    complete = traces.end == TraceEnd.ROOT

A stack that was captured into a folder (Snapshot's module says how) is unwound by

    frames, end = Snapshot(Path("snapshot"), SnapshotOptions(signature_mask=0x007f_ff80_0000_0000)).unwind()

BatchUnwinder keeps what it learnt between batches; table_cache.TableCache keeps a file's decoded rules on disk.
A mapping's file is translated by Module.vaddr_of(mapping, address). The vdso has no file: give Module.from_bytes(its bytes).
Errors: Module.from_path and from_bytes raise BadElfError or UnsupportedArchError, Snapshot BadSnapshotError;
unwinding raises none of them.
"""

from memleak_android.unwind.arch import Arch, arch_by_elf_machine, arch_by_name
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.errors import BadElfError, BadSnapshotError, UnsupportedArchError, UnwindError
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotFrame, SnapshotOptions
from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch, TraceEnd
from memleak_android.unwind.walk.batch import BatchUnwinder, unwind_batch
from memleak_android.unwind.walk.joining import join_truncated
from memleak_android.unwind.walk.plan import ModuleSource

__all__ = [
    "AddressSpace",
    "Arch",
    "BadElfError",
    "BadSnapshotError",
    "BatchUnwinder",
    "Mapping",
    "Method",
    "Module",
    "ModuleSource",
    "SampleBatch",
    "Snapshot",
    "SnapshotFrame",
    "SnapshotOptions",
    "TraceBatch",
    "TraceEnd",
    "UnsupportedArchError",
    "UnwindError",
    "arch_by_elf_machine",
    "arch_by_name",
    "join_truncated",
    "unwind_batch",
]
