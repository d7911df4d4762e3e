"""Code that came without the linker's word (bionic's linker says none): known from its first allocation on."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.support.gcc import gcc
from tests.support.workloads import FLAGS, functions, run

FOLDER = Path(__file__).resolve().parents[1] / "programs"
TIMES, THREADS, BYTES = 400, 6, 1237


def offset_of(library: Path, function: str) -> int:
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        return int(symbols.get_symbol_by_name(function)[0]["st_value"])


def held_by(folder: Path, times: int, *stray: str) -> dict[bool, int]:
    """Blocks that the mapped code leaked: by whether their stacks are whole."""
    library, program = folder / "libunannounced.so", folder / "unannounced_code"
    one_segment = ["-shared", "-fPIC", "-nostdlib", "-Wl,-z,noseparate-code"]
    gcc(*FLAGS, *one_segment, "-o", library, FOLDER / "unannounced_library.c")
    gcc(*FLAGS, "-pthread", "-o", program, FOLDER / "unannounced_code.c")
    words = (program, library, str(offset_of(library, "take")), str(times), *stray)
    result = run("preload", folder, "--", *words)
    assert result.report["target"]["exit_status"] == 0
    held = {True: 0, False: 0}
    for site in result.sites():
        if site["inuse_space"] == BYTES * site["inuse_objects"]:
            held["take" in functions(site) and site["end"] == "ROOT"] += site["inuse_objects"]
    return held


def test_every_thread_that_meets_it_at_once(tmp_path: Path) -> None:
    """If another thread rereads the maps meanwhile, the stack is named by the new maps, not the old."""
    assert held_by(tmp_path, TIMES) == {True: TIMES * THREADS, False: 0}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="unannounced_code.c has no stray for this machine")
def test_beside_an_address_that_nothing_explains(tmp_path: Path) -> None:
    """It puts off the looks for itself, not those for what comes."""
    assert held_by(tmp_path, TIMES // 4, "one") == {True: TIMES // 4 * THREADS, False: 0}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="unannounced_code.c has no stray for this machine")
def test_beside_addresses_that_wander(tmp_path: Path) -> None:
    """Readings are postponed so that the process does not stall. Late stacks are reported, and none is lost."""
    held = held_by(tmp_path, TIMES // 4, "others")
    assert sum(held.values()) == TIMES // 4 * THREADS
