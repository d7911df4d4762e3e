"""The agent enters a running process by ptrace: what it calls there, and that the process stays as it was."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.support.injection import inject, last_words, library, running
from tests.support.preload_session import find_parts

KILLS = 300  # where one thing was out of order one in a hundred killed the process


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_function_gets_its_argument_gives_its_result_and_no_thread_notices() -> None:
    """Registers, flags, vectors, sleeps and waits are checked by the threads themselves."""
    with running("threads", "3") as (process, _):
        entered = [inject(process.pid, library(), "length_of", "x" * n) for n in range(1, 16)]
        assert [each.result for each in entered] == list(range(1, 16)), entered
        assert {each.n_threads for each in entered} == {7}
        assert inject(process.pid, library(), "minus_one").result == -1
        assert last_words(process) == "unharmed, 0 signals"


def test_signals_arrive_all_the_same() -> None:
    with running("threads") as (process, _):
        for n in range(1, 6):
            process.send_signal(signal.SIGUSR1)
            assert inject(process.pid, library(), "length_of", "x" * n).result == n
        time.sleep(0.05)
        words = last_words(process)
        assert words.startswith("unharmed, ") and int(words.split()[1]) >= 1


def test_a_library_that_cannot_be_loaded_is_refused_in_the_linkers_words(tmp_path: Path) -> None:
    with running("threads") as (process, _):
        refused = inject(process.pid, tmp_path / "absent.so", "length_of")
        assert refused.exit_code == 4
        assert refused.refusal == (
            f"process {process.pid} could not load {tmp_path}/absent.so: {tmp_path}/absent.so: cannot open shared object"
            " file: No such file or directory (make the file readable for its user, or use --tracer bpf)"
        )
        assert last_words(process) == "unharmed, 0 signals"


def test_a_function_that_crashes_is_undone() -> None:
    with running("threads") as (process, _):
        refused = inject(process.pid, library(), "crash", "x")
        assert "crash() in process" in refused.refusal and "raised signal 11" in refused.refusal
        assert inject(process.pid, library(), "length_of", "xyz").result == 3
        assert last_words(process) == "unharmed, 0 signals"


def test_job_control_stays_as_it_is() -> None:
    with running("threads", "2", "interrupted") as (process, _):
        process.send_signal(signal.SIGSTOP)
        while state_of(process.pid) != "T":
            time.sleep(0.01)
        refused = inject(process.pid, library(), "length_of", "x")
        assert refused.refusal == f"process {process.pid} is stopped (let it go on: kill -CONT {process.pid})"
        assert state_of(process.pid) == "T"
        process.send_signal(signal.SIGCONT)
        assert inject(process.pid, library(), "length_of", "x").result == 1
        assert last_words(process) == "unharmed, 0 signals"


def test_a_program_run_by_its_linker_is_entered() -> None:
    with running("threads", before=["/lib64/ld-linux-x86-64.so.2"]) as (process, _):
        assert inject(process.pid, library(), "length_of", "four").result == 4
        assert last_words(process) == "unharmed, 0 signals"


def test_a_static_program_is_refused() -> None:
    with running("threads", flags=("-static",)) as (process, _):
        refused = inject(process.pid, library(), "length_of", "x")
        reason = "is linked statically: nothing can be loaded into it (use --tracer bpf)"
        assert refused.refusal == f"process {process.pid} {reason}"
        assert last_words(process) == "unharmed, 0 signals"


def test_a_child_of_vfork_is_refused() -> None:
    with running("vfork") as (process, first):
        child = int(first.split()[1])
        refused = inject(child, library(), "length_of", "x")
        assert refused.refusal.startswith(
            f"process {child} shares the memory of its parent {process.pid}: a child of vfork()"
        )


def test_missing_processes_and_threads() -> None:
    assert inject(2**22 - 1, library(), "length_of").refusal.startswith(f"there is no process {2**22 - 1}")
    assert "kernel thread" in inject(2, library(), "length_of").refusal
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert inject(child.pid, library(), "length_of").refusal == (
        f"process {child.pid} has ended already (name another one)"
    )
    child.wait()


def test_an_agent_killed_within_the_call_leaves_the_process_as_it_was() -> None:
    """The thread returns by what the call left on its stack, traced or not. Waits may end early, as by any tracer's end."""
    agent_gone, moments = 0, random.Random(9)
    with running("threads", "2", "interrupted") as (process, _):
        for _ in range(KILLS):
            run = subprocess.Popen(_command(process.pid), stdout=subprocess.DEVNULL)
            time.sleep(moments.uniform(0.0005, 0.013))
            run.kill()
            agent_gone += run.wait() == -signal.SIGKILL
            assert state_of(process.pid) in "RSD"
        assert agent_gone > KILLS / 4
        assert inject(process.pid, library(), "length_of", "abcd").result == 4
        assert last_words(process) == "unharmed, 0 signals"


def _command(pid: int) -> list[str]:
    return [str(find_parts()[0]), "inject", str(pid), str(library()), "length_of", "killed"]
