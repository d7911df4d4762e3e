"""A library at the address of another, whose stacks look like the other's when they are read by its frames (same_address.c)."""

import platform
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.attaching import run_attached
from tests.support.workloads import PROGRAMS, both_tracers, build, built, functions, run

BLOCKS = 400
LIBRARIES = {  # (bytes of the frame, where the word stands, size of a block, who calls)
    "libone.so": (24, 8, 1013, "first_caller"),
    "libtwo.so": (120, 24, 1019, "second_caller"),  # where the first one's return address would be
}


pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="written in its instructions")


def command(folder: Path) -> list[str | Path]:
    for name, (frame, word_at, size, _) in LIBRARIES.items():
        given = [f"-DFRAME={frame}", f"-DWORD_AT={word_at}", f"-DBYTES={size}"]
        build(PROGRAMS / "same_address_library", folder, *given, "-shared", "-fPIC", output=name)
    return [built(PROGRAMS / "same_address"), *(folder / name for name in LIBRARIES), str(BLOCKS)]


def check(report: dict[str, Any]) -> None:
    held = Counter[tuple[str, ...]]()
    for site in report["sites"]:
        if "leak" in functions(site):
            assert site["end"] == "ROOT"
            names = functions(site)[2:4]
            held[Path(site["frames"][1]["module"]).name, *names] += site["inuse_space"]
    assert held == {(name, caller, "main"): BLOCKS * size for name, (_, _, size, caller) in LIBRARIES.items()}


@both_tracers
def test_no_frame_of_the_library_that_is_gone(tracer: str, tmp_path: Path) -> None:
    """A stack that was walked before is known again by its words: not by those of other code."""
    result = run(tracer, tmp_path, "--", *command(tmp_path))
    assert result.report["target"]["exit_status"] == 0, "they were not at the same address"
    check(result.report)


@pytest.mark.compares_code
@pytest.mark.parametrize("tracer", ["plt", "inline"])
def test_nor_in_a_running_process(tracer: str, tmp_path: Path) -> None:
    words = [*command(tmp_path), "waits"]
    exit_code, _, report = run_attached(tracer, words, tmp_path / "report.json")
    assert exit_code == 0, "they were not at the same address"
    check(report)
