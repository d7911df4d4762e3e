"""Calls in a process that may be left behind: their results, and those that do not return."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from memleak_android.unwind import abandonable_calls
from memleak_android.unwind.abandonable_calls import Progress, call


@pytest.fixture(autouse=True)
def own_callee(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with little patience, which later tests do not meet."""
    monkeypatch.setattr(abandonable_calls, "_callee", abandonable_calls._Callee())
    monkeypatch.setattr(abandonable_calls._callee, "patience_s", 1.0)
    monkeypatch.setattr(abandonable_calls, "_PATIENCE_MIN_S", 0.1)


def opened_file(progress: Progress, path: str) -> tuple[int, int]:
    return os.getpid(), os.open(path, os.O_RDONLY)


def open_files(progress: Progress) -> tuple[list[str], int]:
    return os.listdir("/proc/self/fd"), -1


def end(progress: Progress) -> tuple[None, int]:
    os._exit(1)


def wait_for_ever(progress: Progress, times: int) -> tuple[None, int]:
    for _ in range(times):
        progress()
    signal.pause()
    return None, -1


def test_the_other_process_opens_files_for_us(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    pids = set()
    for _ in range(2):
        pid, descriptor = call(opened_file, str(tmp_path / "file"))
        pids.add(pid)
        assert os.read(descriptor, 9) == b"x"
        os.close(descriptor)
    assert len(pids) == 1 and os.getpid() not in pids
    with pytest.raises(FileNotFoundError) as missing:
        call(opened_file, str(tmp_path / "none"))
    assert missing.value.filename == str(tmp_path / "none")
    with pytest.raises(ValueError, match="null byte"):
        call(opened_file, "a\0b")


def test_one_that_ends_the_process_is_an_error() -> None:
    with pytest.raises(OSError, match="has ended"):
        call(end)
    _, descriptor = call(opened_file, os.devnull)
    os.close(descriptor)


def test_it_holds_no_descriptor_of_ours() -> None:
    """A pipe that it held open would have no end for its reader, once it waits for ever."""
    pipe = os.pipe()
    names, _ = call(open_files)
    assert len(names) == 5  # three of /dev/null, the socket, and the folder itself
    for end in pipe:
        os.close(end)


def compute(progress: Progress, seconds: float) -> tuple[str, int]:
    while time.process_time() < seconds:
        pass
    return "done", -1


def test_one_that_runs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine lets it wait for a processor, which says nothing of a file system."""
    monkeypatch.setattr(abandonable_calls._callee, "patience_s", 0.1)
    monkeypatch.setattr(abandonable_calls, "_RUNS_MAX", 1000)
    assert call(compute, 1.0) == ("done", -1)


def test_one_that_does_not_return_is_left_behind() -> None:
    first, descriptor = call(opened_file, os.devnull)
    os.close(descriptor)
    with pytest.raises(TimeoutError) as late:
        call(wait_for_ever, 3)
    assert late.value.errno == errno.ETIMEDOUT
    second, descriptor = call(opened_file, os.devnull)
    os.close(descriptor)
    assert second != first
    assert abandonable_calls._callee.patience_s < 1, "each later one would take as long"
