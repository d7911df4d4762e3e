"""The session is over, and no thread of the process can be borrowed to take the hooks out: said, harmless, and mended by the
next session.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.attached_session import contents_of, layout_of, leak, loaded, order
from tests.support.attaching import children_of, until
from tests.support.inline_session import WAYS
from tests.support.stack_capture import stopped

pytestmark = pytest.mark.compares_code


@pytest.mark.parametrize("way", WAYS)
def test_the_only_thread_is_in_a_signal_handler_at_the_end(way: str) -> None:
    """Nothing is recorded from the stop on, however long a thread is looked for: the last snapshot, taken afterwards,
    has the blocks of before.
    """
    with loaded(0) as process:
        leak(process)
        before, layout = contents_of(process.pid), layout_of(process.pid)
        looking = threading.Thread(target=lambda: None)

        def change_meanwhile() -> None:
            while "TracerPid:\t0\n" in Path(f"/proc/{process.pid}/status").read_text():
                pass
            assert order(process, b"f") == b"freed\n"
            for _ in range(100):
                assert order(process, b"m") == b"leaked\n"

        def leak_and_stay() -> None:
            nonlocal looking
            leak(process)
            assert order(process, b"h") == b"inside\n"
            assert order(process, b"m") == b"leaked\n"
            looking = threading.Thread(target=change_meanwhile)
            looking.start()

        found = WAYS[way](process.pid, leak_and_stay)
        looking.join()
        assert (found.error, found.lost, found.sizes[5003], found.sizes[4999]) == ("", 0, 23, 1)
        said = (
            f"process {process.pid} is still hooked, but records nothing: "
            f"no thread of process {process.pid} could be borrowed within 2 s: the last one was in a signal handler"
        )
        assert any(remark.startswith(said) for remark in found.remarks), found.remarks
        after = contents_of(process.pid)
        changed = [mapping for mapping in before if after[mapping] != before[mapping]]
        # code that was patched is put back without a thread of the process; slots wait for one
        assert changed and not any(" r-xp " in mapping for mapping in changed)
        assert order(process, b"o") == b"outside\n"
        leak(process)
        again = WAYS[way](process.pid, lambda: leak(process))
        assert (again.error, again.lost, again.sizes[5003]) == ("", 0, 23)
        assert (contents_of(process.pid), layout_of(process.pid)) == (before, layout)
        leak(process)
        assert process.poll() is None


def workers() -> list[int]:
    """Those of the keepers, which detach."""
    keepers = [keeper for agent in children_of(os.getpid()) for keeper in children_of(agent)]
    return [worker for keeper in keepers for worker in children_of(keeper)]


def switches(worker: int) -> int:
    """How often it has gone to sleep, as it does between two tries."""
    status = Path(f"/proc/{worker}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def is_held_meanwhile(pid: int, worker: int) -> bool:
    """Whether we held the process while the worker tried. False: the worker held it."""
    with suppress(PermissionError), stopped(pid):
        tried = switches(worker)
        until(lambda: worker not in workers() or switches(worker) > tried + 2)
        return True
    return False


@pytest.mark.parametrize("way", WAYS)
def test_another_tracer_holds_the_process_while_a_thread_is_looked_for(way: str) -> None:
    """For a moment, as sessions of all processes do."""

    def hold(pid: int) -> None:
        until(lambda: "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text())
        (worker,) = workers()
        until(lambda: is_held_meanwhile(pid, worker))
        assert order(process, b"o") == b"outside\n"

    with loaded(0) as process:
        before, holding = contents_of(process.pid), threading.Thread(target=hold, args=(process.pid,))

        def leak_and_stay() -> None:
            leak(process)
            assert order(process, b"h") == b"inside\n"
            holding.start()

        found = WAYS[way](process.pid, leak_and_stay)
        holding.join()
        assert (found.error, found.sizes[5003]) == ("", 23)
        assert not any("still hooked" in remark for remark in found.remarks), found.remarks
        assert contents_of(process.pid) == before


@pytest.mark.parametrize("way", WAYS)
def test_another_tracer_holds_the_process_for_a_moment_at_the_end(way: str) -> None:
    """As sessions of all processes do. The hooks are taken out once it is gone."""

    def hold(pid: int, held: threading.Event) -> None:
        with stopped(pid):
            held.set()
            until(lambda: any(workers()))

    with loaded(0) as process:
        before, held = contents_of(process.pid), threading.Event()
        holding = threading.Thread(target=hold, args=(process.pid, held))

        def leak_and_be_held() -> None:
            leak(process)
            holding.start()
            assert held.wait(100)

        found = WAYS[way](process.pid, leak_and_be_held)
        holding.join()
        assert (found.error, found.sizes[5003]) == ("", 23)
        assert not any("still hooked" in remark for remark in found.remarks), found.remarks
        assert contents_of(process.pid) == before
        leak(process)
