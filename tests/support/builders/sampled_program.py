"""A running program's stack as samples of a perf.data file."""

from memleak_android.unwind import TraceBatch, unwind_batch
from tests.support.builders import perf_data_writer as perf
from tests.support.builders.perf_data_writer import Attribute, mmap2, sample, stack_part, words
from tests.support.running_program import blocked
from tests.support.stack_capture import capture, sample_batch

KERNEL_CHAIN = words(2, (1 << 64) - 128, 0xFFFF_FFFF_8000_1234)
ATTRIBUTE = Attribute(perf.SIMPLE | perf.CALLCHAIN, name="clock")


class Recorded:
    """One stack of a blocked program, its truth, and its bytes as a sample."""

    def __init__(self) -> None:
        with blocked(["/bin/bash", "-c", "f() { read x; }; f"]) as pid:
            self.stack, self.space, modules = capture(pid)
        batch = sample_batch([self.stack])
        self.truth: TraceBatch = unwind_batch(batch, [self.space], modules)
        self.maps = [
            mmap2(7, m.start, m.end - m.start, m.file_offset, m.path or "//anon", 0, protection=5 if m.is_executable else 3, inode=m.inode)
            for m in self.space.mappings
        ]  # fmt: skip

    def at(self, time: int, keep: int = 1 << 20, tid: int = 8) -> bytes:
        registers = [0] * 24
        for number, value in zip(perf.X86_64_PT_REGS, self.stack.registers, strict=True):
            if number is not None:
                registers[number] = value
        known = [registers[n] for n in range(24) if perf.X86_64_MASK >> n & 1]
        stack = self.stack.stack[: min(len(self.stack.stack) & ~7, keep, 32768)]
        return sample(7, time, KERNEL_CHAIN + stack_part(known, stack), tid=tid)

    @property
    def lookups(self) -> list[int]:
        return (self.truth.address - self.truth.is_return).tolist()
