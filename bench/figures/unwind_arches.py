"""Nanoseconds per frame by architecture: stacks laid out by the rules of real C libraries, none of them run."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memleak_android.unwind import AddressSpace, Arch, BatchUnwinder, Mapping, Module, SampleBatch, TraceEnd
from memleak_android.unwind.cfi.rules import RuleKind
from memleak_android.unwind.engine.library import library_path
from memleak_android.unwind.trace import Method
from memleak_android.unwind.walk.plan import Planner, StepKind

LIBRARIES = {
    "x86_64": Path("/usr/lib/x86_64-linux-gnu/libc.so.6"),
    "arm64": Path("/usr/aarch64-linux-gnu/lib/libc.so.6"),
    "arm32": Path("/usr/arm-linux-gnueabihf/lib/libc.so.6"),
}
SAMPLES, DEPTH, SITES = 20_000, 24, 400
_BASE = 0x4000_0000
_STACK = 0x7F00_0000
_FRAME_BYTES_MAX = 256


@dataclass(frozen=True)
class CallSites:
    """Return addresses, and how to step from each: bytes from the stack pointer to the CFA and to the next address."""

    pcs: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    backs: NDArray[np.int64]


@dataclass(frozen=True)
class Cost:
    """ns per frame of the warm unwinder."""

    arch: str
    ns: float


class _One:
    def __init__(self, module: Module) -> None:
        self._module = module

    def module(self, space: int, mapping: Mapping) -> Module:
        return self._module


def measure(rounds: int) -> list[Cost]:
    """Of those architectures whose library is on this machine, paired and alternating."""
    cases = [_case(Module.from_path(path)) for path in LIBRARIES.values() if path.exists()]
    best: dict[str, float] = {}
    for _ in range(rounds):
        for samples, space, files in cases:
            unwinder = BatchUnwinder([space], files, engine=library_path())
            name = samples.arch.name
            best[name] = min(best.get(name, 1e9), *_passes(unwinder, samples))
    return [Cost(name, ns) for name, ns in best.items()]


def _passes(unwinder: BatchUnwinder, samples: SampleBatch) -> Iterator[float]:
    traces = unwinder.unwind(samples)
    assert (traces.end == TraceEnd.ROOT).all() and len(traces.address) == SAMPLES * DEPTH
    for _ in range(3):
        begin = time.process_time()
        unwinder.unwind(samples)
        yield (time.process_time() - begin) * 1e9 / (SAMPLES * DEPTH)


def _case(module: Module) -> tuple[SampleBatch, AddressSpace, _One]:
    code = next(segment for segment in module.loads if segment.is_executable)
    begin = code.file_offset - code.file_offset % 4096
    end = _BASE + code.file_offset + code.file_bytes - begin
    space, files = AddressSpace([Mapping(_BASE, end, "r-xp", begin, module.path)]), _One(module)
    return _samples(module.arch, _call_sites(module.arch, space, files, end)), space, files


def _call_sites(arch: Arch, space: AddressSpace, files: _One, end: int) -> CallSites:
    """CallSites where the return address lies on the stack and the CFA is so far from the stack pointer."""
    tried = np.random.default_rng(1).integers(_BASE + 4096, end - 4, 20_000).astype(np.uint64) & ~np.uint64(3)
    plans = Planner(arch, [space], files).plans(0, tried, np.ones(len(tried), np.bool_))
    found = []
    for pc, plan in zip(tried.tolist(), plans, strict=True):
        row = plan.row
        if (
            plan.kind is not StepKind.ROW
            or row is None
            or row.method is Method.PROLOGUE
            or row.cfa_expression
        ):
            continue
        rule = next((rule for rule in row.rules if rule.register == row.return_register), None)
        is_plain = arch.slot_of_dwarf.get(row.cfa_register) == arch.sp and not row.is_return_signed
        if (
            is_plain
            and rule is not None
            and rule.kind is RuleKind.OFFSET
            and 0 < row.cfa_offset <= _FRAME_BYTES_MAX
        ):
            found.append((pc, row.cfa_offset, row.cfa_offset + rule.offset))
    pcs, sizes, backs = np.array(found[:SITES], np.int64).T
    return CallSites(pcs.view(np.uint64), sizes, backs)


def _samples(arch: Arch, sites: CallSites) -> SampleBatch:
    chosen = np.random.default_rng(2).integers(0, len(sites.pcs), (DEPTH, SAMPLES))
    size = DEPTH * _FRAME_BYTES_MAX
    words = np.zeros((SAMPLES, size // arch.word_bytes), f"<u{arch.word_bytes}")
    sp = np.zeros(SAMPLES, np.int64)
    for level in range(DEPTH):
        here = chosen[level]
        if level + 1 < DEPTH:
            back = (sp + sites.backs[here]) // arch.word_bytes
            words[np.arange(SAMPLES), back] = sites.pcs[chosen[level + 1]]
        sp += sites.sizes[here]
    registers = np.zeros((SAMPLES, len(arch.registers)), np.uint64)
    registers[:, arch.pc], registers[:, arch.sp] = sites.pcs[chosen[0]], _STACK
    return SampleBatch(
        arch,
        registers,
        np.ones(registers.shape, np.bool_),
        np.full(SAMPLES, _STACK, np.uint64),
        np.arange(SAMPLES, dtype=np.int64) * size,
        np.full(SAMPLES, size, np.int64),
        words.view(np.uint8).reshape(-1),
        np.zeros(SAMPLES, np.int32),
        np.ones(SAMPLES, np.bool_),
    )


def as_text(costs: list[Cost]) -> str:
    """One line per architecture, with its ratio to the first."""
    lines = ["  ns per frame, warm"]
    lines += [f"  {cost.arch:20} {cost.ns:8.1f} ({cost.ns / costs[0].ns:.2f})" for cost in costs]
    missing = [name for name, path in LIBRARIES.items() if not path.exists()]
    return "\n".join(
        [*lines, *(f"  {name} not measured: its C library is not installed" for name in missing)]
    )
