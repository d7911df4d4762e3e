"""The stack of a BPF program and all it calls: 512 bytes on every kernel before private stacks (6.13, x86_64 only).

The kernel of the machine that runs the tests may be younger and say nothing, so the depth is counted in the object:
check_max_stack_depth() of kernel/bpf/verifier.c, which rounds each frame up to 32 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

BUILD = Path(__file__).resolve().parents[3] / "build" / "device"
OBJECTS = sorted(BUILD.glob("*/bpf/*.bpf.o"))
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
        for symbol in symbols:
            if symbol["st_info"]["type"] == "STT_FUNC":
                functions[symbol["st_shndx"], symbol["st_value"]] = Function(symbol.name)
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_REL":
                for one in section.iter_relocations():
                    symbol = symbols[one["r_info_sym"]]
                    targets[section["sh_info"], one["r_offset"]] = (symbol["st_shndx"], symbol["st_value"])
        for symbol in symbols:
            if symbol["st_info"]["type"] == "STT_FUNC":
                start, section = symbol["st_value"], symbol["st_shndx"]
                code = elf.get_section(section).data()[start : start + symbol["st_size"]]
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


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_no_chain_of_calls_needs_more_than_a_kernel_gives(path: Path) -> None:
    functions = read_functions(path)
    depth, chain = max(deepest(functions, at) for at in functions)
    assert len(functions) > 10 and any(one.calls for one in functions.values())
    assert depth <= STACK_BYTES_MAX, " → ".join(chain)


def test_there_is_something_to_look_at() -> None:
    if not OBJECTS:
        pytest.skip("the BPF objects are not built (make device)")
