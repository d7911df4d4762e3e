"""Allocations inside allocations that have not returned: what return probes hide in the stack is put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import nested_calls
from tests.support.gcc import gcc
from tests.support.workloads import FLAGS, need, run

INCOMPLETE = 6


def nested(folder: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    """The report on the program."""
    need("bpf")
    library, program = folder / "libnested.so", folder / "program"
    gcc(*FLAGS, "-fPIC", "-shared", nested_calls.ALLOCATOR, "-o", library)
    link = [f"-L{folder}", "-lnested", "-Wl,-rpath,$ORIGIN"]
    gcc(*FLAGS, *flags, nested_calls.PROGRAM, *link, "-o", program)
    options = ["-O", library, "--symbols-prefix", nested_calls.PREFIX]
    return run("bpf", folder, "--", program, options=options, codes=(code,)).report


def test_each_stack_is_the_program_s(tmp_path: Path) -> None:
    nested_calls.check(nested(tmp_path))


def test_nesting_beyond_the_limit_is_reported(tmp_path: Path) -> None:
    too_deep = 4
    report = nested(tmp_path, f"-DDEPTH={nested_calls.KEPT + too_deep}", code=INCOMPLETE)
    lost = {cause: count for cause, count in report["totals"]["lost"].items() if count}
    assert lost == {"pending_full": too_deep * nested_calls.ROUNDS}
    nested_calls.check_blocks(report, nested_calls.KEPT)
