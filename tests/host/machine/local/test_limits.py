"""Limits of a process's memory, as the kernel has them: its own, and those of the control groups above it."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.machine.local.process import _of_tree, memory_limits

SPACE = 1 << 30


def test_limits_of_the_process() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)  # it runs cat by now
        resource.prlimit(process.pid, resource.RLIMIT_AS, (SPACE, SPACE))
        found = {name: (limit, used) for name, limit, used in memory_limits(process.pid)}
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        process.stdin.close()
    assert found["ulimit -v"] == (SPACE, pages * resource.getpagesize())
    assert "ulimit -d" not in found
    assert memory_limits(process.pid) == [], "it is gone"


@pytest.mark.parametrize(
    "names", [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]
)
def test_limits_of_control_groups_above_it(tmp_path: Path, names: tuple[str, str]) -> None:
    for folder, limit in (
        ("a", "5000"),
        ("a/b", "max" if names[0] == "memory.max" else str((1 << 63) - 4096)),
        ("a/b/c", "7000"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / names[0]).write_text(f"{limit}\n")
        (tmp_path / folder / names[1]).write_text("300\n")
    found = [*_of_tree(str(tmp_path), "/a/b/c", *names)]
    assert found == [("control group /a/b/c", 7000, 300), ("control group /a", 5000, 300)]
    assert [*_of_tree(str(tmp_path), "/../a", *names)] == []


def test_limit_of_a_real_control_group() -> None:
    own = next(
        (
            line.split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if ":memory:" in line
        ),
        "",
    )
    group = Path(f"/sys/fs/cgroup/memory{own}/memleak-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs a writable control group of version 1 with memory: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(SPACE))
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            (group / "cgroup.procs").write_text(str(process.pid))
            (name, limit, used), *_ = memory_limits(process.pid)
            process.stdin.close()
        assert (name, limit) == (f"control group {own.rstrip('/')}/{group.name}", SPACE) and 0 <= used < SPACE
    finally:
        group.rmdir()
