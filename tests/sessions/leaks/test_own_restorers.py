"""A program's own signal restorers: stacks go on in the interrupted code, and each bears its name."""

import platform
from pathlib import Path

import pytest

from tests.support.workloads import built, run

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the restorers are code of x86_64")


@pytest.mark.parametrize("tracer", [pytest.param("bpf", marks=pytest.mark.bpf), "preload"])
def test_each_is_named(tracer: str, tmp_path: Path) -> None:
    report = run(tracer, tmp_path, "--", built(Path(__file__).parent / "own_restorers")).report
    names = {site["inuse_space"]: [frame["function"] for frame in site["frames"]] for site in report["sites"]}
    for size, restorer in ((1000, "by_rax"), (1001, "by_eax"), (1002, "by_push")):
        assert names[size][:6] == ["malloc", "handle", restorer, "syscall", "interrupted", "main"]
        assert names[size][-1] == "_start"
