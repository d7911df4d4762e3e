"""Pairs on the machine: a program's own pool, file descriptors and threads, started there and while it runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.phone.apps import FLAGS
from tests.emulator.phone.compiler import compiled, cross
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import SECONDS, run, started
from tests.sessions.pairs.kept import check_kept

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/pool"
WORKLOADS = Path(__file__).parents[1] / "sessions" / "pairs" / "programs"
SETS = ["--pairs", "malloc", "--pairs", "fd", "--pairs", "pthread", "--pairs", str(WORKLOADS / "pool.toml")]


@pytest.fixture
def program(machine: Machine) -> Iterator[str]:
    flags = [*FLAGS, "-std=gnu11", "-fno-optimize-sibling-calls", "-pie", "-pthread"]
    made = compiled("pool", cross("aarch64-linux-gnu-gcc"), flags, [WORKLOADS / "pool.c"])
    with machine.holding(REMOTE, made):
        yield f"{REMOTE}/pool"


@pytest.fixture
def by_slots(machine: Machine) -> Iterator[str]:
    """The same, its pool in a library, which it calls through slots."""
    cc = cross("aarch64-linux-gnu-gcc")
    flags = [*FLAGS, "-std=gnu11", "-fno-optimize-sibling-calls", "-pthread"]
    shared = [*flags, "-Dmain=pool_main", "-shared", "-Wl,-soname,libpool.so"]
    library = compiled("libpool.so", cc, shared, [WORKLOADS / "pool.c"])
    linked = [*flags, f"-L{library.parent}", "-lpool", "-Wl,-rpath,$ORIGIN"]
    made = compiled("pool", cc, linked, [WORKLOADS / "pool_main.c"])
    with machine.holding(REMOTE, library, made):
        yield f"{REMOTE}/pool"


@pytest.mark.parametrize(("tracer", "kind"), [("bpf", "program"), ("preload", "by_slots")])
def test_from_its_start(
    machine: Machine, tracer: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    report, program = tmp_path / "report.json", request.getfixturevalue(kind)
    done = run(machine, *SETS, "--tracer", tracer, "--json", report, "--", program)
    assert done.returncode == 0, done.stderr
    parsed = json.loads(report.read_text())
    check_kept(parsed)
    assert parsed["target"]["tracer"] == tracer


@pytest.mark.proof
@pytest.mark.parametrize(("tracer", "kind"), [("bpf", "program"), ("plt", "by_slots")])
def test_while_it_runs_without_its_heap(
    machine: Machine, tracer: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    gate, report, program = f"{REMOTE}.go", tmp_path / "report.json", request.getfixturevalue(kind)
    code, pid, said = machine.shell(f"{program} {gate} >/dev/null 2>&1 </dev/null & echo $!")
    assert code == 0, said
    how = ("--tracer", tracer, "--interval", "1s", "--json", report, "--pid", pid.strip())
    with started(machine, *SETS[2:], *how) as session:
        assert session.stdout.readline(), session.stderr.read()  # the probes are placed
        machine.shell(f"touch {gate}")
        _, said = session.communicate(timeout=SECONDS)
    machine.shell(f"rm {gate}")
    assert session.returncode == 0, said
    parsed = json.loads(report.read_text())
    check_kept(parsed)
    assert {site["kind"] for site in parsed["sites"]} == {"pair:pool", "pair:fd", "pair:pthread"}
