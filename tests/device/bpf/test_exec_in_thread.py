"""A thread that is not the first executes a program: its number may be another thread's from then on."""

import os

import pytest

from tests.support.preload_session import run_by_bpf
from tests.support.snoop_runs import snoop
from tests.support.workloads import PROGRAMS, built, need

NUMBER_REFUSED = 77  # clone3() with set_tid needs CAP_CHECKPOINT_RESTORE


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
