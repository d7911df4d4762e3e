"""Code that came without the linker's word (bionic's linker says none): known from its first allocation on."""

import platform
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.support.workloads import PROGRAMS, Run, built, functions, run

TIMES, THREADS, BYTES = 400, 6, 1237


def offset_of(library: Path, function: str) -> int:
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        return int(symbols.get_symbol_by_name(function)[0]["st_value"])


def measured(folder: Path, times: int, *stray: str) -> Run:
    one_segment = ["-shared", "-fPIC", "-nostdlib", "-Wl,-z,noseparate-code"]
    library = built(PROGRAMS / "unannounced_library", *one_segment)
    words = (
        built(PROGRAMS / "unannounced_code"),
        library,
        str(offset_of(library, "take")),
        str(times),
        *stray,
    )
    result = run("preload", folder, "--", *words, codes=(0, 6))  # 6: most stacks are cut
    assert result.report["target"]["exit_status"] == 0
    return result


def held_by(result: Run) -> dict[bool, int]:
    """Blocks that the mapped code leaked: by whether their stacks are whole."""
    held = {True: 0, False: 0}
    for site in result.sites():
        if site["inuse_space"] == BYTES * site["inuse_objects"]:
            held["take" in functions(site) and site["end"] == "ROOT"] += site["inuse_objects"]
    return held


@pytest.mark.parametrize("stray", ["", "one", "others"])
def test_every_thread_that_meets_it_at_once(tmp_path: Path, stray: str) -> None:
    """If another thread rereads the maps meanwhile, the stack is named by the new maps, not the old.

    An address that nothing explains postpones readings for itself alone. Those that wander postpone all, so that the
    process does not stall: late stacks are reported, and none is lost.
    """
    if stray and platform.machine() != "x86_64":
        pytest.skip("unannounced_code.c has no stray for this machine")
    times = TIMES // 4 if stray else TIMES
    held = held_by(measured(tmp_path, times, *([stray] if stray else [])))
    assert sum(held.values()) == times * THREADS
    assert stray == "others" or not held[False]


def test_what_could_not_be_read_is_not_taken_for_known(tmp_path: Path) -> None:
    """Without a free descriptor the maps cannot be read: the report says so, and they are read as soon as one is free."""
    result = measured(tmp_path, 8, "full")
    held = held_by(result)
    assert sum(held.values()) == 8 * THREADS and held[True] == 4 * THREADS, held
    assert result.totals["lost"].get("mappings", 0) >= 1
    answers = {one["condition"]: one["answer"] for one in result.report["coverage"]}
    assert answers["stacks"] != "yes" and ", complete;" not in result.err
