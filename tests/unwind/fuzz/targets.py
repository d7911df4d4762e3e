"""Fuzz targets, one for each kind of input: all that the unwinder, or a report, does with such a file.

A target returns where the input was used or was refused by a typed error of one line; anything else is a finding.
"""

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memleak_android.host.errors import MemleakError
from memleak_android.host.recording.file import FILE_HEADER
from memleak_android.host.stacks.perf_maps import PerfMap, parse_name
from memleak_android.host.symbols.names_in_file import FunctionNames, soname
from memleak_android.host.symbols.packages import of_distribution
from memleak_android.host.wire.blocks import Block, encode_block
from memleak_android.unwind import AddressSpace, Mapping, Module, SampleBatch, UnwindError
from memleak_android.unwind.arch import ARCHES, Arch
from memleak_android.unwind.cfi.compiled import compile_table
from memleak_android.unwind.cfi.exidx import ExidxSource
from memleak_android.unwind.cfi.expression import evaluate, fold
from memleak_android.unwind.cfi.section import CfiSection
from memleak_android.unwind.cfi.sources import parse_hdr
from memleak_android.unwind.cfi.table import CfiSource, RowSource, UnwindTable
from memleak_android.unwind.elf_image import ElfImage
from memleak_android.unwind.memory import MemoryRegions
from memleak_android.unwind.snapshot.folder import Snapshot, SnapshotOptions
from memleak_android.unwind.snapshot.jit_debug import function_ranges, jit_modules
from memleak_android.unwind.trace import Method
from memleak_android.unwind.walk.batch import BatchUnwinder
from memleak_android.unwind.walk.plan import StepKind, StepPlan
from memleak_android.unwind.walk.rule_lines import RuleLines
from tests.host.commands.test_report import read
from tests.unwind.fuzz.elf_container import Part, write_elf

BASE, STACK = 0x40000000, 0x7000000
_PLACES_MAX = 96
_FRAMES_MAX = 64
_FAR = ((1 << 63) - 8, 1 << 63, (1 << 64) - 16, STACK, STACK + 4096, BASE + 0x195, 0)  # in registers
_VADDRS = (0, 0x1000, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_X86_64 = 62
_BLOCK = struct.Struct("<4xH2xI4x")  # kind and length in the header of a recording's block
_COMPILED_END = 1 << 62  # compiled tables know no functions beyond; processes have none there


def elf(data: bytes) -> None:
    """A file: headers, tables, names, and stacks in its code."""
    module = Module.from_bytes(data, "a.so")
    vaddrs = _rows(module.arch, lambda: list(Module.from_bytes(data, "a.so").table.sources))
    mapping = Mapping(BASE, BASE + 0x10000, "r-xp", 0, "a.so")
    module.bias_of(mapping)
    module.functions(frozenset({b"exit"}))
    function_ranges(module)
    names = FunctionNames(module)
    for vaddr in vaddrs.tolist():
        names.find(vaddr)
    soname(module)
    _stacks(module, mapping, vaddrs)


def _rows(arch: Arch, open_sources: Callable[[], list[RowSource]]) -> np.ndarray:
    """Every row that a few addresses of each source have, lazily and compiled: the same. Returns the addresses."""
    sources = open_sources()
    table = UnwindTable(arch, sources)
    vaddrs_tried = [np.arange(0, 0x800, 0x2F, np.uint64), np.array(_VADDRS, np.uint64)]
    for source in sources:
        for index in source.indexes():
            starts = index.starts[:: len(index.starts) // _PLACES_MAX + 1]
            vaddrs_tried += [starts, starts + np.uint64(3), starts + np.uint64(11)]
    vaddrs = np.unique(np.concatenate(vaddrs_tried))
    ids = table.row_ids(vaddrs)
    columns = RuleLines(arch)
    for row in table.rows:
        columns.line_of(StepPlan(StepKind.ROW, row))
    whole = UnwindTable(arch, open_sources())  # each reads so many bytes and no more
    whole.compile_with(compile_table(arch, whole.sources))
    # entries made to overlap each other are given up at a bound, which each way of asking meets at another entry
    is_spent = any(isinstance(s, CfiSource) and s._decoded_bytes > len(s.section.data) for s in sources)
    for vaddr, one, other in zip(vaddrs.tolist(), ids.tolist(), whole.row_ids(vaddrs).tolist(), strict=True):
        if vaddr >= _COMPILED_END or is_spent:
            continue
        lazy = table.rows[one] if one >= 0 else one
        assert lazy == (whole.rows[other] if other >= 0 else other), hex(vaddr)
    return vaddrs


class _One:
    def __init__(self, module: Module) -> None:
        self._module = module

    def module(self, space: int, mapping: Mapping) -> Module | None:
        return self._module if mapping.path else None


def _stacks(module: Module, mapping: Mapping, vaddrs: np.ndarray) -> None:
    """Samples whose pc and whose stack words are those addresses; by the compiled engine and by NumPy the same."""
    arch = module.arch
    bias = module.bias_of(mapping) & (1 << 64) - 1
    pcs = vaddrs - np.uint64(bias)
    pcs = np.unique(np.concatenate([pcs[(pcs >= BASE) & (pcs < BASE + 0x10000)], [np.uint64(BASE + 0x191)]]))[
        :64
    ]
    words = np.resize(np.concatenate([pcs, [0, STACK + 64, STACK - 8]]), 512).astype(f"<u{arch.word_bytes}")
    n = len(pcs)
    registers = np.full((n, len(arch.registers)), STACK + 32, np.uint64)
    far = np.array(_FAR, np.uint64) & np.uint64((1 << 8 * arch.word_bytes) - 1)
    registers[::3] = np.resize(far, registers[::3].shape)
    registers[:, arch.pc], registers[:, arch.sp] = pcs, STACK
    zero = np.zeros(n, np.int64)
    flat = words.view(np.uint8)
    samples = SampleBatch(
        arch, registers, np.ones(registers.shape, np.bool_), np.full(n, STACK, np.uint64), zero, zero + len(flat),
        flat, np.zeros(n, np.int32), np.arange(n) % 2 == 1,
    )  # fmt: skip
    space, files = [AddressSpace([mapping])], _One(module)
    traces = BatchUnwinder(space, files, max_frames=_FRAMES_MAX).unwind(samples)
    assert len(traces) == n and np.diff(traces.offsets).max(initial=0) <= _FRAMES_MAX
    scalars = BatchUnwinder(space, files, max_frames=_FRAMES_MAX, engine=None).unwind(samples)
    for column in ("offsets", "address", "sp", "is_return", "method", "end"):
        assert np.array_equal(getattr(traces, column), getattr(scalars, column)), column


def cfi(data: bytes) -> None:
    """A section: the first byte says whose, its kind and where it lies; the end may be a search table."""
    kind, body = (data[0], data[1:]) if data else (0, b"")
    arch = ARCHES[kind % len(ARCHES)]
    vaddr = _VADDRS[(kind >> 4) % len(_VADDRS)]
    is_eh = not kind & 8
    section = CfiSection(
        body, vaddr, Method.EH_FRAME, arch.word_bytes, 0x100, vaddr, is_eh=is_eh, read_word=lambda v: v
    )
    _rows(arch, lambda: [CfiSource(section, parse_hdr(body[-256:], vaddr, section))])


def exidx(data: bytes) -> None:
    """An index; what it refers to lies in the same bytes."""
    arch = next(a for a in ARCHES if a.word_bytes == 4 and a.link is not None)
    source = ExidxSource(data, 0, 0x9000, lambda vaddr, size: data[vaddr : vaddr + size])
    _rows(arch, lambda: [source])


class Machine:
    """Registers that hold addresses of the stack, memory that is a hash of its address."""

    word_bytes = 8

    def register(self, number: int) -> int:
        return STACK + 8 * number

    def memory(self, address: int, size: int) -> int:
        return address * 0x9E3779B97F4A7C15 & (1 << 8 * size) - 1


def expression(data: bytes) -> None:
    """Evaluated, and folded to a register and a number."""
    fold(data, {16: 0x1234}, 8)
    fold(data, {}, 4)
    value = evaluate(data, Machine(), 0x1000)
    assert 0 <= value < 1 << 64


def xz(data: bytes) -> None:
    """.gnu_debugdata of a file that is well-formed otherwise."""
    image = ElfImage(memoryview(write_elf(_X86_64, [Part(".gnu_debugdata", data)])), "a.so")
    inner = image.mini_debuginfo
    if inner is not None:
        inner.debug_section("frame")


def maps(data: bytes) -> None:
    """maps.txt of a snapshot folder."""
    _snapshot({"regs.txt": b"rip: 40100190\nrsp: 7000000\n", "maps.txt": data, "stack.data": bytes(64)})


def snapshot(data: bytes) -> None:
    """A whole folder: regs.txt, maps.txt, stack.data and a.so, with \\xff\\xfe\\xfd between."""
    names = ("regs.txt", "maps.txt", "stack.data", "a.so")
    files = dict(zip(names, data.split(b"\xff\xfe\xfd", 3), strict=False))
    memory = MemoryRegions([(STACK, memoryview(data))])
    for arch in ARCHES:
        list(
            jit_modules(
                arch,
                AddressSpace([Mapping(STACK, STACK + 0x1000, "rw-p", 1, "a.so")]),
                memory,
                lambda m: None,
            )
        )
    _snapshot(files)


def _snapshot(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="memleak-fuzz-") as name:
        folder = Path(name)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        taken = Snapshot(folder, SnapshotOptions(max_frames=_FRAMES_MAX))
        frames, _ = taken.unwind()
        assert len(frames) <= _FRAMES_MAX
        for frame in frames:
            assert frame.rel_pc is not None
            if frame.named_by is not None:
                FunctionNames(frame.named_by[0]).find(frame.named_by[1])


def recording(data: bytes) -> None:
    """A recording, read and reported. First byte even: the headers of its blocks are put right, so that the payloads are read."""
    as_it_is, body = (data[0] % 2, data[1:]) if data else (1, b"")
    with tempfile.TemporaryDirectory(prefix="memleak-fuzz-") as name:
        file = Path(name) / "a.memleak"
        file.write_bytes(body if as_it_is else _with_sound_headers(body))
        read(file)


def _with_sound_headers(data: bytes) -> bytes:
    """Magic, version, length and checksum of each block as its reader wants them; kind and payload as they are."""
    blocks, at = [FILE_HEADER], len(FILE_HEADER)
    while at + _BLOCK.size <= len(data):
        kind, payload_bytes = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        payload = data[at : at + payload_bytes]
        at += len(payload)
        blocks.append(encode_block(Block(kind, payload[: len(payload) & ~7])))
    return b"".join(blocks)


def names(data: bytes) -> None:
    """A perf map, and the METADATA of a wheel."""
    made = PerfMap(data)
    for address in (0, 0x1000, 0x1FFF, (1 << 64) - 1):
        if name := made.find(address):
            parse_name(name)
    of_distribution(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (elf, cfi, exidx, expression, xz, maps, snapshot, recording, names)
}


def run(kind: str, data: bytes) -> None:
    """One input. Raises what no input may cause."""
    try:
        TARGETS[kind](data)
    except (MemleakError, UnwindError) as error:
        assert len(str(error).splitlines()) == 1, repr(str(error))
