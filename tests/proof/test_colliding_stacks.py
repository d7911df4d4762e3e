"""Two call paths built to meet in a weak stack key: distinguished or reported approximate, never merged silently."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import both_tracers, built, functions, run

# In `make test`; the others, and all of them slowly, are proofs.
SHORT = (((7, 5), "interleaved", 0), ((997, 3), "after", 0), ((5, 499), "after", 0))
CASES = itertools.product(((7, 5), (997, 3), (5, 499)), ("interleaved", "after"), (0, 1000))


@both_tracers
@pytest.mark.parametrize(
    ("blocks", "order", "pause_us"),
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.proof) for case in CASES],
)
def test_same_return_address_and_depth(
    tracer: str, blocks: tuple[int, int], order: str, pause_us: int, tmp_path: Path
) -> None:
    program = built("colliding_paths")
    result = run(tracer, tmp_path, "--", program, *map(str, (*blocks, order, pause_us)), codes=[0, 6])
    assert result.totals["inuse_objects"] == sum(blocks)
    found: Counter[str] = Counter()
    for site in result.sites():
        paths = {"first_path", "second_path"} & set(functions(site))
        assert len(paths) == 1, (site, result.totals)
        (path,) = paths
        if not site.get("approximate"):
            found[path] += site["inuse_objects"]
    for path, true in zip(("first_path", "second_path"), blocks, strict=True):
        assert found[path] <= true, "blocks of the other path are counted here, and not called approximate"
    unsure = sum(site["inuse_objects"] for site in result.sites() if site.get("approximate"))
    assert found.total() + unsure + result.totals["unattributed_objects"] == sum(blocks)
