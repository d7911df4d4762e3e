"""The shim's code map: the mappings alone determine the address bits of a signed return address."""

import subprocess
from pathlib import Path

import pytest

from tests.support.gcc import DEVICE, sanitized
from tests.support.workloads import PROGRAMS

CODE = 0x7B_3456_7000
UPROBES = "[uprobes]"  # kernel/events/uprobes.c: the last page of all


@pytest.fixture(scope="module")
def code_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("code_map") / "code_map"
    parts = (
        *(f"freestanding/{name}.c" for name in ("bytes", "clock", "sandbox")),
        "stacks/code_lines.c",
        "segment/thread.c",
    )
    sources = [PROGRAMS / "parts" / "code_map_of_text.c", *(DEVICE / "preload" / part for part in parts)]
    return sanitized(program, "address,undefined", "-w", "-fno-builtin", *sources)


def read(code_map: Path, *lines: tuple[int, int, str, str], addresses: list[int]) -> tuple[int, list[bool]]:
    text = "".join(f"{low:x}-{high:x} {mode} 00000000 00:00 0 {name}\n" for low, high, mode, name in lines)
    words = [code_map, *(f"{address:x}" for address in addresses)]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    mask, *found = done.stdout.split()
    return int(mask, 16), [one == "1" for one in found]


@pytest.mark.parametrize("bits", [39, 42, 47, 48])
@pytest.mark.parametrize("is_probed", [False, True])
def test_a_signature_begins_where_addresses_end(code_map: Path, bits: int, is_probed: bool) -> None:
    """arm64: 39 bits on most of Android's kernels, 47 with pages of 16 KiB; bit 55 tells user from kernel."""
    end = 1 << bits
    lines = [
        (CODE, CODE + 0x1000, "r-xp", "libapp.so"),
        (end - 0x8000000, end - 0x7000000, "rw-p", "[stack]"),
    ]
    if is_probed:
        lines.append((end - 0x1000, end, "--xp", UPROBES))
    lowest, highest = CODE | 1 << bits, CODE | 0x007F_FFFF_FFFF_FFFF & ~(end - 1)
    mask, found = read(code_map, *lines, addresses=[CODE, lowest, highest, CODE + 0x1000])
    assert mask == end - 1
    assert found == [True, True, True, False]


def test_mappings_above_user_space_do_not_extend_addresses(code_map: Path) -> None:
    """x86_64's page that stands for system calls."""
    lines = [
        (CODE, CODE + 0x1000, "r-xp", "libapp.so"),
        (0x7FFF_FFFD_E000, 0x7FFF_FFFF_F000, "rw-p", "[stack]"),
        (0xFFFF_FFFF_FF60_0000, 0xFFFF_FFFF_FF60_1000, "--xp", "[vsyscall]"),
    ]
    mask, found = read(code_map, *lines, addresses=[CODE])
    assert (mask, found) == (0x7FFF_FFFF_FFFF, [True])
