"""`mark NAME`: the socket of a session, on a machine with none, one or several of them."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.analysis.growth_by_stack import times_of_marks
from memleak_android.host.cli import run
from memleak_android.host.heap.capture import Capture
from memleak_android.host.session.marks import MARKS_MAX, Marks, open_marks, running_sessions, sessions_root
from memleak_android.host.wire.session import SessionInfo


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is longer than a socket's address may be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("long" * 30)))


def at(path: Path, act: Callable[[str], None]) -> None:
    """By its folder's descriptor."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    act(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def made() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def serve(marks: Marks, n: int) -> threading.Thread:
    """A session that takes a snapshot at once, n times."""

    def loop() -> None:
        taken, deadline = 0, time.monotonic() + 60
        while taken < n and time.monotonic() < deadline:
            time.sleep(0.001)  # others of this process are to run, too
            if marks.wants_snapshot():
                assert not marks.wants_snapshot()  # one at a time
                marks.snapshot_taken(1_000 + taken)
                taken += 1

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


def test_marks_are_set_and_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with open_marks() as marks:
        serving = serve(marks, 3)
        assert [run(["mark", name]) for name in ("page", "login", "page")] == [0, 0, 0]
        serving.join()
        assert marks.recorded == [("page", 1_000), ("login", 1_001), ("page", 1_002)]
    assert capsys.readouterr().out.splitlines() == ["page 1", "login 1", "page 2"]
    assert list(sessions_root().iterdir()) == []


def test_no_session_and_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mark", "page"]) == 2
    assert "no session runs" in capsys.readouterr().err
    with open_marks():
        assert run(["mark", "page", "--session", "1"]) == 2
        assert "session 1 does not run" in capsys.readouterr().err
        assert run(["mark", ""]) == 2


def test_several_sessions_want_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    with open_marks(), made() as other:
        at(sessions_root() / "1.socket", other.bind)  # pid 1 runs
        assert run(["mark", "page"]) == 2
    assert f"2 sessions run; --session 1 or {os.getpid()}" in capsys.readouterr().err


def test_socket_of_a_dead_session_is_removed() -> None:
    sessions_root().mkdir(parents=True)
    with made() as dead:
        at(sessions_root() / f"{2**22 + 1}.socket", dead.bind)  # beyond any process id
    assert running_sessions() == {}
    assert list(sessions_root().iterdir()) == []


def test_a_session_that_ends_meanwhile_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with open_marks() as marks:
        (path,) = running_sessions().values()
        asking = threading.Thread(target=lambda: run(["mark", "page"]))
        asking.start()
        while not marks.wants_snapshot():
            pass
        assert path.exists()
    asking.join()
    assert "the session ended before the mark was set" in capsys.readouterr().err


def test_a_cache_folder_that_cannot_be_used_costs_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with open_marks() as marks:
        assert not marks.wants_snapshot()


def test_names_are_bounded_and_need_not_be_utf8() -> None:
    with open_marks() as marks, made() as hostile:
        (path,) = running_sessions().values()
        at(path, hostile.connect)
        hostile.send(b"\xff" * 5_000)
        assert marks.wants_snapshot()
        marks.snapshot_taken(5)
        assert len(marks.recorded[0][0]) == 200
        marks._set *= MARKS_MAX
        with made() as one_more:
            at(path, one_more.connect)
            one_more.send(b"page")
            assert not marks.wants_snapshot()
            assert one_more.recv(9) == b""


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ([["a", n] for n in range(5)], ("a", [0, 1, 2, 3, 4])),
        ([*([["b", n] for n in range(6)]), ["a", 9]], ("b", [0, 1, 2, 3, 4, 5])),
        ([["a", n] for n in range(4)], ("", [])),
        ([["a"], 5, ["a", "x"], None], ("", [])),
        ("hostile", ("", [])),
        (None, ("", [])),
    ],
)
def test_marks_that_growth_is_judged_by(recorded: object, expected: tuple[str, list[int]]) -> None:
    session = SessionInfo.decode(json.loads(json.dumps({"marks": recorded})))
    assert times_of_marks(Capture(session=session)) == expected
