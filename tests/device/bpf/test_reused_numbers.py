"""Numbers of threads and processes that others get: after an exec by a thread that is not the first, or after a process."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.preload_session import run_by_bpf
from tests.support.snoop_runs import snoop
from tests.support.workloads import PROGRAMS, built, need

NUMBER_REFUSED = 77  # clone3() with set_tid needs CAP_CHECKPOINT_RESTORE


@pytest.mark.changes_all_code
def test_blocks_of_the_next_thread_with_its_number_are_counted() -> None:
    need("bpf")
    session = run_by_bpf([built(PROGRAMS / "exec_in_thread")], follow=True)
    if os.waitstatus_to_exitcode(int(session.end["status"])) == NUMBER_REFUSED:
        pytest.skip("the kernel gives out no chosen number here")
    blocks = session.live[session.live["size"] == 2029]
    assert len(blocks) == 7
    assert set(blocks["pid"].tolist()) == set(blocks["tid"].tolist())
    assert not session.status["lost"].any()


def test_a_call_of_that_thread_is_no_longer_active() -> None:
    run = snoop("-f", "exec_in_thread:become_another", command=[built(PROGRAMS / "exec_in_thread"), "true"])
    assert run.numbers("become_another") == (1, 0, 1)


@pytest.mark.changes_all_code
def test_an_ended_child_s_number_is_not_followed_in_another_process(tmp_path: Path) -> None:
    need("bpf")
    number, go = tmp_path / "number", tmp_path / "go"
    waits = f"true & echo $! > {number}.new; wait; mv {number}.new {number}; while [ ! -e {go} ]; do sleep 0.05; done"
    outside: list[int] = []

    def become_the_ended_child() -> None:
        while not number.exists():
            time.sleep(0.05)
        done = subprocess.run([built(PROGRAMS / "exec_in_thread"), number.read_text().strip()], check=False)
        outside.append(done.returncode)
        go.touch()

    other = threading.Thread(target=become_the_ended_child)
    other.start()
    session = run_by_bpf(["sh", "-c", waits], follow=True)
    other.join()
    if outside == [NUMBER_REFUSED]:
        pytest.skip("the kernel gives out no chosen number here")
    assert (outside, session.sizes()[2029]) == ([0], 0)
