"""The session is over, and no thread of the process can be borrowed to take the hooks out: said, harmless, and mended by the
next session.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.attached_session import attach, contents_of, layout_of, leak
from tests.support.gcc import gcc
from tests.support.inline_session import attach_inline, started
from tests.support.workloads import BUILT, FLAGS

pytestmark = pytest.mark.compares_code

SOURCE = Path(__file__).parents[1] / "programs" / "stays_in_handler.c"
WAYS = {"plt": attach, "inline": attach_inline}


def program() -> Path:
    BUILT.mkdir(parents=True, exist_ok=True)
    output, own = BUILT / SOURCE.stem, BUILT / f"{SOURCE.stem}.{os.getpid()}"
    gcc(*FLAGS, "-Wl,-z,now", "-o", own, SOURCE)
    own.rename(output)
    return output


def ordered(process: subprocess.Popen[bytes], order: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(order)
    process.stdin.flush()
    return process.stdout.readline()


@pytest.mark.parametrize("way", WAYS)
def test_the_only_thread_is_in_a_signal_handler_at_the_end(way: str) -> None:
    with started(program()) as process:
        leak(process)
        before, layout = contents_of(process.pid), layout_of(process.pid)

        def leak_and_stay() -> None:
            leak(process)
            assert ordered(process, b"h") == b"inside\n"

        found = WAYS[way](process.pid, leak_and_stay)
        assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23)
        said = (
            f"process {process.pid} is still hooked, but records nothing: "
            f"no thread of process {process.pid} could be borrowed within 2 s: the last one was in a signal handler"
        )
        assert any(remark.startswith(said) for remark in found.remarks), found.remarks
        # code that was patched is put back without a thread of the process; slots wait for one
        assert (contents_of(process.pid) == before) == (way == "inline")
        assert ordered(process, b"o") == b"outside\n"
        leak(process)
        again = WAYS[way](process.pid, lambda: leak(process))
        assert (again.error, again.lost, again.sizes[5003]) == ("", 0, 23)
        assert (contents_of(process.pid), layout_of(process.pid)) == (before, layout)
        leak(process)
        assert process.poll() is None


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_recorded_from_the_stop_on_however_long_a_thread_is_looked_for(way: str) -> None:
    """Calls while the agent searches in vain for a thread to remove the hooks: the last snapshot, taken afterwards,
    has the blocks of before.
    """
    with started(program()) as process:
        looking = threading.Thread(target=lambda: None)

        def change_meanwhile() -> None:
            while "TracerPid:\t0\n" in Path(f"/proc/{process.pid}/status").read_text():
                pass
            assert ordered(process, b"f") == b"freed\n"
            for _ in range(100):
                assert ordered(process, b"m") == b"leaked\n"

        def leak_and_stay() -> None:
            nonlocal looking
            leak(process)
            assert ordered(process, b"h") == b"inside\n"
            assert ordered(process, b"m") == b"leaked\n"
            looking = threading.Thread(target=change_meanwhile)
            looking.start()

        found = WAYS[way](process.pid, leak_and_stay)
        looking.join()
        assert (found.error, found.lost) == ("", 0)
        assert any("is still hooked, but records nothing" in remark for remark in found.remarks)
        assert (found.sizes[5003], found.sizes[4999]) == (23, 1)
        assert ordered(process, b"o") == b"outside\n"
        assert process.poll() is None
