"""Allocations inside allocations that have not returned: what return probes hide in the stack is put back."""

from pathlib import Path
from typing import Any

from tests.support.whole_stacks import (
    ALLOCATOR,
    KEPT,
    NESTED,
    NESTED_ROUNDS,
    PREFIX,
    check_nested,
    check_nested_blocks,
)
from tests.support.workloads import built, run

INCOMPLETE = 6


def nested(folder: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    """The report on the program."""
    library = built(ALLOCATOR, "-fPIC", "-shared")
    options = ["-O", library, "--symbols-prefix", PREFIX]
    return run("bpf", folder, "--", built(NESTED, *flags, library), options=options, codes=(code,)).report


def test_each_stack_is_the_program_s(tmp_path: Path) -> None:
    check_nested(nested(tmp_path))


def test_nesting_beyond_the_limit_is_reported(tmp_path: Path) -> None:
    too_deep = 4
    report = nested(tmp_path, f"-DDEPTH={KEPT + too_deep}", code=INCOMPLETE)
    lost = {cause: count for cause, count in report["totals"]["lost"].items() if count}
    assert lost == {"pending_full": too_deep * NESTED_ROUNDS}
    check_nested_blocks(report, KEPT)
