"""`--kernel` on the machine: what a program there makes the kernel hold, with the kernel's stack and the user's code."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.phone.apps import FLAGS
from tests.emulator.phone.compiler import compiled, cross
from tests.emulator.phone.machine import Machine, adb_program
from tests.emulator.test_sessions import APP, SECONDS, check_clean, interrupt, run, started, wait_until_done
from tests.sessions.kernel.test_memory import PIPE_BYTES, kernel_part, names, of_caller, of_pipes

pytestmark = pytest.mark.emulator

REMOTE = "/data/local/tmp/of-kernel"
RESTRICT = "/proc/sys/kernel/kptr_restrict"
SOURCE = Path(__file__).parents[1] / "sessions" / "kernel" / "programs" / "held.c"
PIPES = 200


@pytest.fixture(scope="module")
def held(machine: Machine) -> Iterator[str]:
    flags = [*FLAGS, "-std=gnu11", "-pie"]
    made = compiled("held", cross("aarch64-linux-gnu-gcc"), flags, [SOURCE])
    with machine.holding(REMOTE, made):
        yield f"{REMOTE}/held"


@pytest.fixture
def shown_names(machine: Machine) -> Iterator[None]:
    """/proc/kallsyms with addresses, for root."""
    _, before = machine.root_shell(f"cat {RESTRICT}")
    machine.root_shell(f"echo 1 >{RESTRICT}")
    yield
    machine.root_shell(f"echo {before.strip()} >{RESTRICT}")


def pipes_held(machine: Machine, held: str, report: Path, whole: bool, *how: str) -> dict[str, Any]:
    """The report.json of a session in which the program filled pipes."""
    words = [adb_program(), "-P", str(machine.server_port), "-s", machine.serial, "shell"]
    line = f"echo $$; exec {held} pipes {PIPES}"
    with subprocess.Popen(
        [*words, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        pid = program.stdout.readline().strip()
        target = [] if whole else ["--pid", pid]
        with started(machine, "--kernel", *how, *target, "--interval", "1s", "--json", report) as session:
            assert session.stdout.readline(), session.stderr.read()  # the session runs
            print(file=program.stdin, flush=True)
            assert program.stdout.readline() == "held\n"
            interrupt(session)
            _, said = session.communicate(timeout=SECONDS)
            print(file=program.stdin, flush=True)
    assert session.returncode in (0, 6), said
    parsed: dict[str, Any] = json.loads(report.read_text())
    assert parsed["target"]["pid"] == (0 if whole else int(pid))
    assert (parsed["target"]["tracer"], parsed["target"]["serial"]) == ("kernel", machine.serial)
    return parsed


@pytest.mark.usefixtures("shown_names")
@pytest.mark.parametrize(
    ("whole", "how"),
    [
        (False, ()),
        *(pytest.param(*one, marks=pytest.mark.proof) for one in ((True, ()), (False, ("--without-btf",)))),
    ],
)
def test_pages_of_pipes_have_both_stacks(
    machine: Machine, held: str, whole: bool, how: tuple[str, ...], tmp_path: Path
) -> None:
    report = pipes_held(machine, held, tmp_path / "report.json", whole, *how)
    filled = of_pipes(report)
    assert sum(site["inuse_space"] for site in filled) == PIPES * PIPE_BYTES
    top = report["sites"][0]
    assert top in filled and top["end"] == "ROOT"
    assert "vfs_write" in kernel_part(top) and top["frames"][1]["module"] == "[kernel]"
    assert names(top).index("fill_pipe") < names(top).index("hold") < names(top).index("main")
    assert not whole or "held" in [one["name"] for one in report["processes"]]
    # pipe() of libc keeps no frame: who called it is in the link register alone
    (made,) = (site for site in of_caller(report, "kmalloc", "fill_pipe") if names(site)[1] == "__kmalloc")
    assert made["inuse_objects"] == PIPES and names(made).index("pipe") + 1 == names(made).index("fill_pipe")


def kernel_names(site: dict[str, Any]) -> set[str]:
    return set(kernel_part(site)) - {""}


@pytest.mark.proof
def test_an_app_by_its_name(machine: Machine, tmp_path: Path) -> None:
    """The pages that its heap is made of, of whose stacks kernel.kptr_restrict=2 hides the names in the kernel."""
    machine.shell(f"am start -n {APP}/.MainActivity")
    pid = machine.wait_for_process(APP)
    machine.wait_for_mapping(pid, "libleaky.so")
    report, symbols = tmp_path / "report.json", machine.symbols
    words = ("--kernel", "--package", APP, "--interval", "1s", "--symbols", symbols, "--json", report)
    with started(machine, *words) as session:
        assert session.stdout.readline(), session.stderr.read()
        machine.shell(f"am start -n {APP}/.MainActivity")
        wait_until_done(machine, APP, session)
        interrupt(session)
        _, said = session.communicate(timeout=SECONDS)
    assert session.returncode in (0, 6), said
    parsed = json.loads(report.read_text())
    assert (parsed["target"]["package"], parsed["target"]["pid"]) == (APP, int(pid))
    assert any("/proc/kallsyms hides addresses" in note for note in parsed["notes"])
    by_app = [site for site in parsed["sites"] if any(name.startswith("demo::") for name in names(site))]
    assert by_app and not any(kernel_names(site) for site in by_app)
    check_clean(machine, APP)


def test_a_refusal_is_one_line(machine: Machine) -> None:
    with machine.refusing("bpf"):
        done = run(machine, "--kernel", "--duration", "1s")
    assert done.returncode == 5
    (line,) = (line for line in done.stderr.splitlines() if "error:" in line)
    assert "Permission denied" in line and "SELinux" in line and "run as root" not in line
    check_clean(machine, APP)
