"""The BPF objects use only what bpftime, a runtime in user space, has: helpers, kinds of maps, kinds of programs; and no more
stack than a kernel gives.

Looked up in its source, eunomia-bpf/bpftime at ec26daecc8e7 (2026-08-05): helpers in runtime/src/bpf_helper.cpp (the tables
that `register_helper` gets), kinds of maps in runtime/src/handler/map_handler.cpp, flags of ring records in the helpers
themselves: anything but 0 is a warning on each call, so they are options in read-only data, 0 until a loader sets them.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.support.gcc import DEVICE
from tests.support.workloads import ROOT

BUILD = ROOT / "build" / "device"
SOURCES = DEVICE / "bpf"
OBJECTS = ("memleak.bpf.o", "snoop.bpf.o")

# Numbers of linux/bpf.h (enum bpf_func_id): map lookup, update, delete, push, pop, peek; probe_read, its _str, _user, _kernel and
# _user_str; ktime_get_ns, trace_printk, get_prandom_u32, get_smp_processor_id, tail_call, pid_tgid, uid_gid, comm, perf_event_output,
# get_stackid, get_stack, ktime_get_boot_ns, ringbuf output, reserve, submit, discard; ktime_get_coarse_ns, get_func_ip,
# get_attach_cookie, strncmp.
HELPERS = {1, 2, 3, 87, 88, 89, 4, 45, 112, 113, 114, 5, 6, 7, 8, 12, 14, 15, 16, 25, 27, 67, 125, 130, 131, 132, 133, 160, 173, 174, 182}  # fmt: skip
# Of a kernel alone, in programs that the agent loads where it has them, and behind options: ringbuf query, get_current_task_btf,
# task_pt_regs, find_vma.
BY_TRIAL = {134, 158, 175, 180}
# enum bpf_map_type: hash, array, prog array, perf event array, percpu hash and array, stack trace, lru hash, lpm trie, array of
# maps, queue, stack, ring buffer, bloom filter.
MAP_TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 22, 23, 27, 30}
ADD, OR, AND, XOR, FETCH, EXCHANGE, COMPARE_EXCHANGE = 0x00, 0x40, 0x50, 0xA0, 0x01, 0xE1, 0xF1

CALL, LOAD_64, ATOMIC_32, ATOMIC_64 = 0x85, 0x18, 0xC3, 0xDB


def instructions(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Section, opcode, source register and immediate value of each instruction."""
    with path.open("rb") as stream:
        for section in ELFFile(stream).iter_sections():
            if section["sh_type"] == "SHT_PROGBITS" and section["sh_flags"] & 4:
                data, at = section.data(), 0
                while at < len(data):
                    opcode, registers, _, value = struct.unpack_from("<BBhi", data, at)
                    yield section.name, opcode, registers >> 4, value
                    at += 16 if opcode == LOAD_64 else 8


def built(name: str) -> Path:
    path = BUILD / "x86_64" / "bpf" / name
    if not path.exists():
        pytest.skip("the BPF objects are not built (make device)")
    return path


@pytest.mark.parametrize("name", OBJECTS)
def test_calls_and_atomic_operations_are_those_that_it_has(name: str) -> None:
    """2: a function of the kernel's is called (BPF_PSEUDO_KFUNC_CALL)."""
    found = list(instructions(built(name)))
    assert not [where for where, opcode, source, _ in found if opcode == CALL and source == 2]
    helpers = {(value, where) for where, opcode, source, value in found if opcode == CALL and not source}
    assert len({number for number, _ in helpers}) > 8
    assert not {one for one in helpers if one[0] not in HELPERS | BY_TRIAL}
    atomics = {value for _, opcode, _, value in found if opcode in (ATOMIC_32, ATOMIC_64)}
    plain = {ADD, OR, AND, XOR}
    assert atomics and atomics <= plain | {one | FETCH for one in plain} | {EXCHANGE, COMPARE_EXCHANGE}


def test_kinds_of_maps() -> None:
    """By the sources: an object has them in its BTF only."""
    names = {
        name for path in SOURCES.rglob("*.h") for name in re.findall(r"BPF_MAP_TYPE_\w+", path.read_text())
    }
    header = (Path("/usr/include/linux/bpf.h")).read_text()
    kinds = re.findall(
        r"^\s(BPF_MAP_TYPE_\w+)(?: = \w+)?,", header.partition("enum bpf_map_type {")[2], re.MULTILINE
    )
    numbers = {name: kinds.index(name) for name in names}
    assert len(numbers) > 3
    assert not {name for name, number in numbers.items() if number not in MAP_TYPES}


@pytest.mark.parametrize("name", OBJECTS)
def test_flags_of_ring_records_are_zero_until_a_loader_sets_them(name: str) -> None:
    """No such flag is left in the code; the options, read-only data, begin as zeros but for one number each."""
    for path in SOURCES.rglob("*.h"):
        if path.parent.name == "kernel":  # a runtime in user space has no kernel allocators
            continue
        assert "BPF_RB_" not in path.read_text().replace("BPF_RB_AVAIL_DATA", "a question"), path.name
    with built(name).open("rb") as stream:
        options = ELFFile(stream).get_section_by_name(".rodata.options").data()
    assert sum(byte != 0 for byte in options) <= 4


# ---- the stack of a program and all it calls: 512 bytes on every kernel before private stacks (6.13, x86_64 only). The kernel
# of the machine that runs the tests may be younger and accept more, so the depth is counted in the object:
# check_max_stack_depth() of kernel/bpf/verifier.c, which rounds each frame up to 32 bytes.

STACK_BYTES_MAX = 512
FRAME_POINTER = 10
PSEUDO_CALL = 1


@dataclass
class Function:
    name: str
    frame_bytes: int = 0
    calls: set[tuple[int, int]] = field(default_factory=set)  # section and offset


def read_functions(path: Path) -> dict[tuple[int, int], Function]:
    """By section and offset."""
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
        functions, targets = {}, {}
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_REL":
                for one in section.iter_relocations():
                    symbol = symbols[one["r_info_sym"]]
                    targets[section["sh_info"], one["r_offset"]] = (symbol["st_shndx"], symbol["st_value"])
        for symbol in symbols:
            if symbol["st_info"]["type"] == "STT_FUNC":
                start, section = symbol["st_value"], symbol["st_shndx"]
                code = elf.get_section(section).data()[start : start + symbol["st_size"]]
                functions[section, start] = Function(symbol.name)
                _read_code(functions[section, start], code, section, start, targets)
    return functions


def _read_code(
    function: Function,
    code: bytes,
    section: int,
    start: int,
    targets: dict[tuple[int, int], tuple[int, int]],
) -> None:
    holds_frame_pointer = {FRAME_POINTER}
    for at in range(0, len(code), 8):
        opcode, registers, offset, value = struct.unpack_from("<BBhi", code, at)
        destination, source = registers & 15, registers >> 4
        is_store, is_load = opcode & 7 in (2, 3), opcode & 7 == 1
        if (is_store and destination == FRAME_POINTER) or (is_load and source == FRAME_POINTER):
            function.frame_bytes = max(function.frame_bytes, -offset)
        if opcode == 0xBF:  # a pointer to the frame: mov, then add of a constant
            holds_frame_pointer.discard(destination)
            if source == FRAME_POINTER:
                holds_frame_pointer.add(destination)
        elif opcode == 0x07 and destination in holds_frame_pointer:
            function.frame_bytes = max(function.frame_bytes, -value)
            holds_frame_pointer.discard(destination)
        elif opcode == 0x85 and source == PSEUDO_CALL:
            where = targets.get((section, start + at))
            here = (section, start + at + 8 * (value + 1))
            function.calls.add(here if where is None else (where[0], where[1] + 8 * (value + 1)))


def deepest(functions: dict[tuple[int, int], Function], at: tuple[int, int]) -> tuple[int, list[str]]:
    """Bytes of the deepest chain of calls from here, and its functions."""
    function = functions[at]
    own = -(-max(function.frame_bytes, 1) // 32) * 32
    below = max((deepest(functions, one) for one in function.calls), default=(0, []))
    return own + below[0], [f"{function.name} {own}", *below[1]]


@pytest.mark.parametrize(
    "path", sorted(BUILD.glob("*/bpf/*.bpf.o")), ids=lambda path: f"{path.parts[-3]}-{path.name}"
)
def test_no_chain_of_calls_needs_more_than_a_kernel_gives(path: Path) -> None:
    functions = read_functions(path)
    depth, chain = max(deepest(functions, at) for at in functions)
    assert len(functions) > 10 and any(one.calls for one in functions.values())
    assert depth <= STACK_BYTES_MAX, " → ".join(chain)
