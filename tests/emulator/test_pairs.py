"""Pairs on the machine: a program's own pool, file descriptors and threads, started there and while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.apps import FLAGS
from tests.emulator.compiler import compiled, cross
from tests.emulator.machine import Machine
from tests.emulator.test_sessions import SECONDS, run, started
from tests.sessions.pairs.kept import check_kept

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/pool"
WORKLOADS = Path(__file__).parents[1] / "sessions" / "pairs" / "programs"
SETS = [
    word for one in ("malloc", "fd", "pthread", str(WORKLOADS / "pool.toml")) for word in ("--pairs", one)
]


@pytest.fixture
def program(machine: Machine) -> Iterator[str]:
    flags = [*FLAGS, "-std=gnu11", "-fno-optimize-sibling-calls", "-pie", "-pthread"]
    made = compiled("pool", cross("aarch64-linux-gnu-gcc"), flags, [WORKLOADS / "pool.c"])
    assert machine.adb("push", made, REMOTE).returncode == 0
    yield REMOTE
    machine.shell(f"rm {REMOTE}")


def test_a_program_from_its_start(machine: Machine, program: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(machine, *SETS, "--json", report, "--", program)
    assert done.returncode == 0, done.stderr
    check_kept(json.loads(report.read_text()))


@pytest.fixture
def by_slots(machine: Machine) -> Iterator[str]:
    """The same, its pool in a library, which it calls through slots."""
    cc = cross("aarch64-linux-gnu-gcc")
    flags = [*FLAGS, "-std=gnu11", "-fno-optimize-sibling-calls", "-pthread"]
    shared = [*flags, "-Dmain=pool_main", "-shared", "-Wl,-soname,libpool.so"]
    library = compiled("libpool.so", cc, shared, [WORKLOADS / "pool.c"])
    linked = [*flags, f"-L{library.parent}", "-lpool", "-Wl,-rpath,$ORIGIN"]
    made = compiled("pool", cc, linked, [WORKLOADS / "pool_main.c"])
    folder = f"{REMOTE}.slots"
    machine.shell(f"mkdir -p {folder}")
    for one in (library, made):
        assert machine.adb("push", one, f"{folder}/{one.name}").returncode == 0
    yield f"{folder}/pool"
    machine.shell(f"rm -r {folder}")


def test_by_the_shim(machine: Machine, by_slots: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(machine, *SETS, "--tracer", "preload", "--json", report, "--", by_slots)
    assert done.returncode == 0, done.stderr
    parsed = json.loads(report.read_text())
    check_kept(parsed)
    assert parsed["target"]["tracer"] == "preload"


@pytest.mark.proof
def test_by_the_slots_of_a_running_program(machine: Machine, by_slots: str, tmp_path: Path) -> None:
    check_running(machine, by_slots, tmp_path / "report.json", "--tracer", "plt")


@pytest.mark.proof
def test_a_running_program_without_its_heap(machine: Machine, program: str, tmp_path: Path) -> None:
    check_running(machine, program, tmp_path / "report.json")


def check_running(machine: Machine, program: str, report: Path, *words: str) -> None:
    gate = f"{REMOTE}.go"
    code, pid, said = machine.shell(f"{program} {gate} >/dev/null 2>&1 </dev/null & echo $!")
    assert code == 0, said
    argv = (*SETS[2:], *words, "--interval", "1s", "--json", report, "--pid", pid.strip())
    with started(machine, *argv) as session:
        assert session.stdout is not None and session.stderr is not None
        assert session.stdout.readline(), session.stderr.read()  # the probes are placed
        machine.shell(f"touch {gate}")
        _, said = session.communicate(timeout=SECONDS)
    machine.shell(f"rm {gate}")
    assert session.returncode == 0, said
    parsed = json.loads(report.read_text())
    check_kept(parsed)
    assert {site["kind"] for site in parsed["sites"]} == {"pair:pool", "pair:fd", "pair:pthread"}
