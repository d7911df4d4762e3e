"""Processes with another root, other namespaces or another libc: exact amounts, and every function of the stack named.

By the shim only with --follow where the program is a child of the command (unshare --fork), and only where the shim's
file can be opened under the new root.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine.binaries import find_binary
from tests.support.attaching import attached, result, waiting
from tests.support.containers import NAMESPACES, in_container, make_root, need_namespaces
from tests.support.workloads import both_following, both_tracers, build, built, functions, need, run

LEAK_BYTES = 1013
CHAIN = ["malloc", "inner", "middle", "outer", "main"]
DEEP = [f"link{number}" for number in range(7, 0, -1)]


def leaks_told(argv: list[str | Path], folder: Path, blocks: int) -> list[dict[str, Any]]:
    """The user sites of `program` (leaks_when_told), attached to while it ran."""
    need("bpf")
    report = folder / "report.json"
    with waiting(argv, "program") as (process, pid), attached(pid, report) as session:
        process.communicate(b"x" * blocks)
        found = result(session, report)
    assert found["totals"]["unattributed_objects"] == 0 and found["totals"]["lost"] == {}
    return [site for site in found["sites"] if site["kind"] == "user"]


def check_told(sites: list[dict[str, Any]], blocks: int) -> None:
    (site,) = sites
    assert (site["inuse_space"], site["inuse_objects"]) == (blocks * LEAK_BYTES, blocks)
    assert functions(site)[:5] == CHAIN and site["end"] == "ROOT"


@pytest.mark.parametrize("libc", ["musl", "glibc"])
def test_attached_to_a_container(libc: str, tmp_path: Path) -> None:
    """Its mount and pid namespaces, its root and its C library are not ours."""
    need_namespaces()
    root = make_root(tmp_path, libc, "leaks_when_told", "program")
    check_told(leaks_told(in_container(root, "/program"), tmp_path, 7), 7)


def test_two_containers_of_the_same_files(tmp_path: Path) -> None:
    """Uprobes are placed by inode: the neighbour runs into the same breakpoints, and is not counted."""
    need_namespaces()
    root = make_root(tmp_path, "musl", "leaks_when_told", "program")
    with waiting(["chroot", root, "/program"], "program") as (neighbour, _):
        neighbour.stdin.write(b"x" * 3)
        neighbour.stdin.flush()
        check_told(leaks_told(["chroot", root, "/program"], tmp_path, 2), 2)


@both_tracers
def test_musl_program_on_this_root(tracer: str, tmp_path: Path) -> None:
    program = build("deep_chain", tmp_path, compiler="musl-gcc")
    outcome = run(tracer, tmp_path, "--", program)
    assert outcome.amounts() == (4007, 1)
    (site,) = outcome.sites()
    assert functions(site)[:9] == ["malloc", *DEEP, "main"] and site["end"] == "ROOT"


@both_following
def test_command_in_other_namespaces(tracer: str, tmp_path: Path) -> None:
    """The shim meets its agent by an abstract socket, which knows no file system; pids are those of the agent."""
    need_namespaces()
    outcome = run(tracer, tmp_path, "--", *NAMESPACES, built("deep_chain"), options=["--follow"])
    (site,) = (site for site in outcome.sites() if "link7" in functions(site))
    assert (site["inuse_space"], site["inuse_objects"], site["end"]) == (4007, 1, "ROOT")
    assert functions(site)[1:9] == [*DEEP, "main"]


def test_shim_under_another_root_that_has_it(tmp_path: Path) -> None:
    """Without /proc in there the shim cannot say what is mapped where: the amounts stay exact, stacks are partial."""
    root = make_root(tmp_path, "musl", "deep_chain", "program")
    shim = find_binary("libmemleak.so", "x86_64")
    (root / str(shim.parent)[1:]).mkdir(parents=True)
    shutil.copy(shim, root / str(shim)[1:])
    outcome = run("preload", tmp_path, "--", "chroot", root, "/program", codes=[0, 6])
    assert outcome.amounts() == (4007, 1)
    (site,) = outcome.sites()
    assert site["end"] == "ROOT" or outcome.report["unwinding"]["partial"] == 1


@pytest.mark.proof
@both_tracers
@pytest.mark.parametrize("libc", ["musl", "glibc"])
def test_command_that_changes_root_is_measured_or_said_not_to_be(
    libc: str, tracer: str, tmp_path: Path
) -> None:
    root = make_root(tmp_path, libc, "deep_chain", "program")
    outcome = run(tracer, tmp_path, "--", "chroot", root, "/program", codes=[0, 4, 5, 6])
    is_measured = outcome.code in (0, 6) and outcome.amounts() == (4007, 1)
    is_said = "not measured" in outcome.out + outcome.err or outcome.code in (4, 5)
    assert is_measured or is_said, json.dumps(outcome.totals) + outcome.out[-500:]
    assert not any("setlocale" in functions(site) for site in outcome.report.get("sites", ())), (
        "of chroot itself"
    )
