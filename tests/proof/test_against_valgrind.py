"""Distribution programs against valgrind: what they hold at their exit, to the byte, and every stack of it.

No tolerance: each address of each frame is compared. What valgrind does differently, and how it is made equal:

- it adds strings to the environment, which programs copy: ours is run with the same (valgrind.equal_environment);
- its own malloc, setenv and putenv are frames of the stack: left out (valgrind.in_use_at_exit);
- it knows no clone3, so that a thread's outermost frame is clone: left out in both (oracles.THREAD_START);
- it unwinds past _start into the words of argv: cut there (oracles.stacks_of_valgrind);
- a shell's PPID and a pid in a string have as many bytes as digits: no program here keeps one.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracles import valgrind
from tests.support.workloads import Run, both_tracers, run

Stack = tuple[tuple[str, int], ...]
"""(object, vaddr of the call's return address) of each frame outside the allocator, innermost first."""

ALLOCATOR = {
    *("malloc", "calloc", "realloc", "reallocarray", "free", "posix_memalign", "memalign", "aligned_alloc"),
    *("valloc", "pvalloc", "__libc_memalign", "operator new", "operator new[]"),
}
THREAD_START = {"clone", "__clone", "clone3", "__clone3"}


def stacks_of_report(report: Mapping[str, Any]) -> dict[Stack, tuple[int, int]]:
    """Bytes and blocks of each stack of a report.json."""
    amounts: dict[Stack, tuple[int, int]] = {}
    for site in report["sites"]:
        frames = [frame for frame in site["frames"] if not frame["inlined"]]
        rest = _callers([frame["function"] for frame in frames])
        stack = tuple(
            (_real(frame["module"]), int(frame["vaddr"], 16))
            for frame in frames[rest:]
            if frame["function"] not in THREAD_START
        )
        _add(amounts, stack, site["inuse_space"], site["inuse_objects"])
    return amounts


def stacks_of_valgrind(
    records: Sequence[valgrind.Record], report: Mapping[str, Any]
) -> dict[Stack, tuple[int, int]]:
    """The same of valgrind's records; the report only has the objects' load addresses."""
    vaddrs: dict[str, set[int]] = {}
    for stack in stacks_of_report(report):
        for name, vaddr in stack:
            vaddrs.setdefault(name, set()).add(vaddr)
    records = [
        valgrind.Record(
            record.bytes,
            record.blocks,
            tuple(valgrind.Frame(f.ip, _real(f.object), f.function) for f in record.frames),
        )
        for record in records
    ]
    bases = valgrind.bases(records, vaddrs)
    amounts: dict[Stack, tuple[int, int]] = {}
    for record in records:
        rest = _callers([frame.function for frame in record.frames])
        # Past the outermost frame valgrind goes on into the words of argv.
        known = itertools.takewhile(lambda frame: frame.object, record.frames[rest:])
        stack = tuple(
            (f.object, f.ip + 1 - bases.get(f.object, 0)) for f in known if f.function not in THREAD_START
        )
        _add(amounts, stack, record.bytes, record.blocks)
    return amounts


def _callers(functions: Sequence[str]) -> int:
    """How many of the innermost frames are the allocator's: its entries call each other."""
    inside = (i for i, name in enumerate(functions) if name.split("(")[0] not in ALLOCATOR)
    return next(inside, len(functions))


def _add(amounts: dict[Stack, tuple[int, int]], stack: Stack, space: int, objects: int) -> None:
    before = amounts.get(stack, (0, 0))
    amounts[stack] = before[0] + space, before[1] + objects


def _real(path: str) -> str:
    return os.path.realpath(path) if path else ""


GIT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat"}
AUTHOR = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

# Run in a folder of their own that make_inputs() fills.
PROGRAMS: dict[str, list[str]] = {
    "jq": ["/usr/bin/jq", "-c", ".[]", "numbers.json", "numbers.json"],
    "sqlite3": [
        "/usr/bin/sqlite3",
        ":memory:",
        "create table t(x); insert into t values (1), (2); select * from t",
    ],
    "git-log": ["/usr/bin/git", "log", "--stat"],
    "git-status": ["/usr/bin/git", "status", "--porcelain"],
    "python3": ["/usr/bin/python3", "-I", "-c", "import json; print(json.dumps([1, 2, {}]))"],
    "xz-threads": ["/usr/bin/xz", "-T2", "--block-size=512KiB", "-6", "-k", "-f", "-q", "input"],
    "awk": ["/usr/bin/mawk", "{ n[length($0)]++ } END { for (i in n) print i, n[i] }", "numbers.json"],
    "apt (C++)": ["/usr/bin/apt-config", "dump", "Dir"],
    "grep": ["/usr/bin/grep", "-E", "-c", "(a|b)*c?[0-9]{1,3}", "numbers.json"],
}
SLOW = {"python3", "xz-threads", "git-status", "git-log", "awk", "grep", "apt (C++)"}


@dataclass(frozen=True)
class Judged:
    """One program with its inputs, and what valgrind says of it."""

    argv: list[str]
    folder: Path
    environment: Mapping[str, str]
    runs: dict[str, Run] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[valgrind.Record]:
        return valgrind.in_use_at_exit(self.argv, self.environment, self.folder)

    def run(self, tracer: str) -> Run:
        if tracer not in self.runs:
            self.runs[tracer] = self._run(tracer)
        return self.runs[tracer]

    def _run(self, tracer: str) -> Run:
        environment = valgrind.equal_environment(self.environment, self.folder)
        words = ("--", *self.argv)  # valgrind sees no objects either: -I ignores PYTHONMALLOC
        return run(tracer, self.folder, *words, options=["--no-python-objects"], environment=environment)


def make_inputs(folder: Path) -> None:
    (folder / "numbers.json").write_text("[" + ",\n".join(map(str, range(300))) + "]\n")
    # Two blocks for xz, each the work of tenths of a second: with shorter or more of them it depends on the moment how
    # many threads and buffers it makes.
    (folder / "input").write_bytes(Path("/usr/bin/python3").read_bytes()[: 1 << 20])
    for words in (["init", "-q"], ["add", "numbers.json"], ["commit", "-q", "-m", "numbers"]):
        environment = {**os.environ, **GIT, **AUTHOR, "HOME": str(folder)}
        subprocess.run(["git", *words], cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.proof] * (name in SLOW)) for name in PROGRAMS],
)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    argv = PROGRAMS[request.param]
    for needed in ("git", argv[0]):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    make_inputs(folder)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "PYTHONMALLOC": "malloc",
        "PYTHONHASHSEED": "0",
        **GIT,
    }
    return Judged(argv, folder, environment)


@both_tracers
def test_bytes_and_blocks_held_at_exit(tracer: str, judged: Judged) -> None:
    totals = judged.run(tracer).totals
    assert (totals["inuse_space"], totals["inuse_objects"]) == valgrind.totals(judged.records)


@both_tracers
def test_each_stack_frame_by_frame(tracer: str, judged: Judged) -> None:
    """Every block by the stack that valgrind names; what is not sure must have been called so."""
    result = judged.run(tracer)
    ours = stacks_of_report(result.report)
    theirs = stacks_of_valgrind(judged.records, result.report)
    unsure = result.totals["unattributed_objects"] + sum(
        site["inuse_objects"] for site in result.report["sites"] if site.get("approximate")
    )
    if not unsure:
        assert differing(ours, theirs) == {}
    else:
        assert sum(abs(mine[1] - other[1]) for mine, other in differing(ours, theirs).values()) <= 2 * unsure


def differing(
    ours: Mapping[Stack, tuple[int, int]], theirs: Mapping[Stack, tuple[int, int]]
) -> dict[Stack, tuple[tuple[int, int], tuple[int, int]]]:
    both = {stack: (ours.get(stack, (0, 0)), theirs.get(stack, (0, 0))) for stack in {*ours, *theirs}}
    return {stack: pair for stack, pair in both.items() if pair[0] != pair[1]}
