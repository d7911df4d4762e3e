"""The BPF objects use only what bpftime, a runtime in user space, has: helpers, kinds of maps, kinds of programs.

Looked up in its source, eunomia-bpf/bpftime at ec26daecc8e7 (2026-08-05): helpers in runtime/src/bpf_helper.cpp (the tables
that `register_helper` gets), kinds of maps in runtime/src/handler/map_handler.cpp, flags of ring records in the helpers
themselves: anything but 0 is a warning on each call, so they are options in read-only data, 0 until a loader sets them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

BUILD = Path(__file__).resolve().parents[3] / "build" / "device" / "x86_64" / "bpf"
SOURCES = Path(__file__).resolve().parents[3] / "device" / "bpf"
OBJECTS = ("memleak.bpf.o", "snoop.bpf.o")

# Numbers of linux/bpf.h (enum bpf_func_id): map lookup, update, delete, push, pop, peek; probe_read, its _str, _user, _kernel and
# _user_str; ktime_get_ns, trace_printk, get_prandom_u32, get_smp_processor_id, tail_call, pid_tgid, uid_gid, comm, perf_event_output,
# get_stackid, get_stack, ktime_get_boot_ns, ringbuf output, reserve, submit, discard; ktime_get_coarse_ns, get_func_ip,
# get_attach_cookie, strncmp.
HELPERS = {1, 2, 3, 87, 88, 89, 4, 45, 112, 113, 114, 5, 6, 7, 8, 12, 14, 15, 16, 25, 27, 67, 125, 130, 131, 132, 133, 160, 173, 174, 182}  # fmt: skip
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
    if not (BUILD / name).exists():
        pytest.skip("the BPF objects are not built (make device)")
    return BUILD / name


@pytest.mark.parametrize("name", OBJECTS)
def test_helpers_are_those_that_it_has(name: str) -> None:
    used = {
        (value, where)
        for where, opcode, source, value in instructions(built(name))
        if opcode == CALL and not source
    }
    assert len({number for number, _ in used}) > 8
    assert not {one for one in used if one[0] not in HELPERS}


@pytest.mark.parametrize("name", OBJECTS)
def test_no_kernel_function_is_called(name: str) -> None:
    """2: bpf_call of a function of the kernel's (BPF_PSEUDO_KFUNC_CALL)."""
    assert not [
        where for where, opcode, source, _ in instructions(built(name)) if opcode == CALL and source == 2
    ]


@pytest.mark.parametrize("name", OBJECTS)
def test_atomic_operations_are_those_of_the_instruction_set(name: str) -> None:
    found = {value for _, opcode, _, value in instructions(built(name)) if opcode in (ATOMIC_32, ATOMIC_64)}
    plain = {ADD, OR, AND, XOR}
    assert found and found <= plain | {one | FETCH for one in plain} | {EXCHANGE, COMPARE_EXCHANGE}


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
        assert "BPF_RB_" not in path.read_text(), path.name
    with built(name).open("rb") as stream:
        options = ELFFile(stream).get_section_by_name(".rodata.options").data()
    assert sum(byte != 0 for byte in options) <= 4
