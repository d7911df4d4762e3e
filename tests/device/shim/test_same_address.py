"""A library at the address of another, whose stacks look like the other's when they are read by its frames (same_address.c)."""

from __future__ import annotations

import platform
from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import PROGRAMS, both_tracers, build, built, functions, run

BLOCKS = 400
LIBRARIES = {  # (bytes of the frame, where the word stands, size of a block, who calls)
    "libone.so": (24, 8, 1013, "first_caller"),
    "libtwo.so": (120, 24, 1019, "second_caller"),  # where the first one's return address would be
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="written in its instructions")
@both_tracers
def test_no_frame_of_the_library_that_is_gone(tracer: str, tmp_path: Path) -> None:
    """A stack that was walked before is known again by its words: not by those of other code."""
    for name, (frame, word_at, size, _) in LIBRARIES.items():
        given = [f"-DFRAME={frame}", f"-DWORD_AT={word_at}", f"-DBYTES={size}"]
        build(PROGRAMS / "same_address_library", tmp_path, *given, "-shared", "-fPIC", output=name)
    program = built(PROGRAMS / "same_address")
    result = run(tracer, tmp_path, "--", program, *(tmp_path / name for name in LIBRARIES), str(BLOCKS))
    assert result.report["target"]["exit_status"] == 0, "they were not at the same address"
    held = Counter[tuple[str, ...]]()
    for site in result.sites():
        if "leak" in functions(site):
            assert site["end"] == "ROOT"
            names = functions(site)[2:4]
            held[Path(site["frames"][1]["module"]).name, *names] += site["inuse_space"]
    assert held == {(name, caller, "main"): BLOCKS * size for name, (_, _, size, caller) in LIBRARIES.items()}
