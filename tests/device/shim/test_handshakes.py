"""Other users at a session's socket, which every user may connect to. programs/parts/handshakes.c has what one process can do."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.attached_program import session_name
from tests.support.attaching import descendant, until
from tests.support.preload_session import await_process, run_preloaded, started_outside
from tests.support.workloads import PROGRAMS, built

OTHER_USER = 65534
OF_USER_MAX = 16  # ML_HANDSHAKES_OF_USER
MAGIC = 0x32676573306B6C6D  # ML_SEGMENT_MAGIC


@contextmanager
def another_user() -> Iterator[None]:
    """A socket's user is the effective one at connect(2)."""
    if os.getuid():
        pytest.skip("needs root, to become another user")
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


def connected(name: str) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.setblocking(False)
    with suppress(BlockingIOError):  # the queue is full
        stranger.connect(f"\0{name}")
    return stranger


def n_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_strangers_hold_no_session_and_leave_no_descriptors(tmp_path: Path) -> None:
    """Some say nothing, some a part of a greeting, some send descriptors: for each of them the session stood still for 5 s."""
    word, strangers, running = session_name(), list[socket.socket](), []
    name = word.rpartition(":")[0]
    guess = struct.pack("=4Q", MAGIC, 1, 2, 0)
    program, pipe = built(PROGRAMS / "preload_workload", "-fno-builtin"), os.pipe()

    def start() -> None:
        agent = descendant(os.getpid(), "memleakd")
        before = n_descriptors(agent)
        with another_user():
            for i in range(300):
                strangers.append(connected(name))
                with suppress(OSError):
                    if i % 3 == 1:
                        strangers[-1].send(guess)
                    elif i % 3:
                        socket.send_fds(strangers[-1], [guess], [pipe[0], pipe[1], pipe[0]])
        running.append(started_outside(tmp_path, word, program, "many", "1000", "31"))
        assert running[0].wait(60) == 0
        assert until(lambda: n_descriptors(agent) <= before + OF_USER_MAX), "descriptors were left open"

    session = await_process(word, start)
    assert session.sizes() == {31: 1000}
    assert len(session.processes) == 2, "of the one process: its start and its end"
    for stranger in strangers:
        stranger.close()
    for end in pipe:
        os.close(end)


def test_the_socket_s_name_shows_nothing_of_the_nonce(tmp_path: Path) -> None:
    """Every user reads the name in /proc/net/unix."""
    words = []
    for file in (tmp_path / "first", tmp_path / "second"):
        run_preloaded(["sh", "-c", f"cat /proc/$$/environ >{file}"])
        (found,) = (one for one in file.read_bytes().split(b"\0") if one.startswith(b"MEMLEAK_SESSION="))
        words.append(found.decode().partition("=")[2].partition(":"))
    for name, _, nonce in words:
        assert len(nonce) == 32
        parts = {nonce[i : i + 4] for i in range(29)}
        assert sum(name[i : i + 4] in parts for i in range(len(name) - 3)) < 3, "more than by chance"
        assert int(name[-8:], 16) != int(nonce[:8], 16) * 2654435761 % 2**32
    assert words[0][0] != words[1][0] and words[0][2] != words[1][2]


@contextmanager
def name_of_another_user(name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with another_user():
            listener.bind(f"\0{name}")
            listener.listen()
        yield listener


def test_a_program_tells_another_user_nothing_who_took_its_agent_s_name(tmp_path: Path) -> None:
    """Once the agent has ended, every user may take the name, and would get the nonce and the segment."""
    word, program = session_name(), built(PROGRAMS / "preload_workload", "-fno-builtin")
    with name_of_another_user(word.rpartition(":")[0]) as listener:
        running = started_outside(tmp_path, word, program, "many", "1000", "31")
        listener.settimeout(60)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(1 << 16) == b""
        assert running.wait(60) == 0


def test_an_agent_whose_name_is_taken_does_not_begin(tmp_path: Path) -> None:
    word = session_name()
    with (
        name_of_another_user(word.rpartition(":")[0]),
        pytest.raises(AssertionError, match="could not listen for the target"),
    ):
        await_process(word, lambda: pytest.fail("it has begun"))
