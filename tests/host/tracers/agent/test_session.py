"""The session of an agent: pipes, deaths, silence; its reader thread reads on while it is busy."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memleak_android.host.errors import ConnectionCut, TracerError
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.tracers.agent import channel_reader
from memleak_android.host.tracers.agent.channel_reader import ChannelReader
from memleak_android.host.tracers.agent.session import AgentDied, AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.wire.blocks import BlockKind, Lost
from memleak_android.host.wire.payloads import decode_status
from tests.support.attaching import until
from tests.support.command_line import FAKE_AGENT
from tests.support.preload_session import find_parts
from tests.support.workloads import built

ATTACH = ("wire 2", "pid 77")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    sessions = []

    def begin(scenario: dict[str, Any], lines: Sequence[str] = ATTACH, **how: Any) -> AgentSession:
        monkeypatch.setenv("FAKE_AGENT", json.dumps(scenario))
        channel = LocalChannel([sys.executable, str(FAKE_AGENT), "preload"])
        session = AgentSession("fake", channel, lines, **how)
        sessions.append(session)
        return session

    yield begin
    for session in sessions:
        session.close()


def pid_of(session: AgentSession) -> int:
    channel = session._channel
    assert isinstance(channel, LocalChannel)
    return channel.pid


def test_an_agent_that_loads_has_more_time_than_one_that_runs(start: Any) -> None:
    session = start({"silent": True}, silence_s=0.1, loading_s=0.6)
    with pytest.raises(AgentDied, match=r"^the agent did not answer for 0\.6 s"):
        list(session.blocks())
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(session), 0)
    session = start({"stuck": True}, silence_s=0.3, loading_s=60)
    with pytest.raises(AgentDied, match=r"did not answer for 0\.3 s"):
        for block in session.blocks():
            if block.kind == BlockKind.STATUS:
                session.stop()
    session.abandon()
    assert session._channel.end_text() == "killed by SIGKILL"


def test_agent_that_is_not_a_program(tmp_path: Path) -> None:
    program = tmp_path / "memleakd"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    with pytest.raises(TracerError) as caught:
        LocalChannel([str(program)])
    assert str(caught.value) == f"could not start {program}: Exec format error; build it with `make device`"
    assert caught.value.exit_code == 5


def test_no_descriptor_is_left_open(start: Any, tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    session = start({"run": 0.05})
    list(session.blocks())
    session.close()
    with pytest.raises(TracerError):
        LocalChannel([str(tmp_path / "missing")])
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_users_terminal_where_standard_input_is_closed() -> None:
    """`memleak-android … <&- 2>&-`: the target gets /dev/null there, and our pipes stay our pipes."""
    words = ("wire 2", "arg sh", "arg -c", "arg readlink%20/proc/self/fd/0%20/proc/self/fd/2")
    program = (
        "import sys\nfrom memleak_android.host.tracers.agent.session import AgentSession\n"
        "from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel\n"
        f"c = LocalChannel([sys.executable, {str(FAKE_AGENT)!r}], give_stdio=True)\n"
        f"s = AgentSession('fake', c, [*{words!r}, USER_STDIO_LINE])\nlist(s.blocks())\ns.close()\n"
    )
    argv = ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, program]
    environment = {**os.environ, "FAKE_AGENT": "{}"}
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=environment)
    assert done.stdout.splitlines()[-2:] == ["/dev/null", "/dev/null"]


WAIT_S = 60.0
HUNDRED_BYTES = 100 * 2048  # of a hundred stacks' evidence at least


class Scripted:
    """A remote channel that gives pieces as they are put, and tells how many were asked for."""

    is_remote = True

    def __init__(self, *pieces: bytes | BaseException | None) -> None:
        self.pieces, self.sent, self.n_given = deque(pieces), bytearray(), 0
        self.changed = threading.Condition()

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        with self.changed:
            self.sent += outgoing
            outgoing.clear()
            piece = self.pieces.popleft() if self.pieces else b""
            self.n_given += piece != b""
            self.changed.notify_all()
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def await_that(self, what: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(what, WAIT_S)


def test_a_machine_that_stood_still_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(channel_reader, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    reader = ChannelReader(Scripted(b"", b"", b"a", None), b"", 60)
    assert [*reader.pieces()] == [b"a"]
    reader.close()


def test_everything_is_read_before_anything_is_taken() -> None:
    channel = Scripted(b"a", b"b", b"c", None)
    reader = ChannelReader(channel, b"start\n", 60)
    pieces = reader.pieces()
    assert next(pieces) == b"a"
    channel.await_that(lambda: channel.n_given == 4)
    assert [*pieces] == [b"b", b"c"] and channel.sent == b"start\n"
    reader.close()


def test_what_ended_it_comes_behind_what_came_before() -> None:
    channel = Scripted(b"a", b"b", ConnectionCut("cut", "connect it again"))
    reader, seen = ChannelReader(channel, b"", 60), []
    with pytest.raises(ConnectionCut):
        for piece in reader.pieces():
            seen.append(piece)
            channel.await_that(lambda: channel.n_given == 3)
    assert seen == [b"a", b"b"]
    reader.close()


def test_too_much_is_not_read_until_some_is_taken_and_lines_go_all_the_same() -> None:
    channel = Scripted(*(b"x" * 100 for _ in range(10)), None)
    reader = ChannelReader(channel, b"", 60, limit_bytes=250)
    pieces = reader.pieces()
    next(pieces)
    channel.await_that(lambda: channel.n_given == 4)  # 300 bytes wait
    assert until(lambda: reader.held_up_s > 0)
    reader.say(b"stop\n")
    channel.await_that(lambda: b"stop\n" in channel.sent)
    with channel.changed:
        assert channel.n_given <= 5  # the line went with one more
    assert len([*pieces]) == 9
    reader.close()


def test_an_agent_far_away_hears_that_we_live_while_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_reader, "_ALIVE_INTERVAL_S", 0.01)
    channel = Scripted(b"x" * 100)
    reader = ChannelReader(channel, b"", 60, limit_bytes=10)
    pieces = reader.pieces()
    channel.pieces.append(b"y" * 100)
    assert next(pieces)
    channel.await_that(lambda: channel.sent.count(b"alive\n") > 5)
    reader.close()


def test_closed_while_it_waits_for_room() -> None:
    channel = Scripted(*(b"x" * 100 for _ in range(10)))
    reader = ChannelReader(channel, b"", 60, limit_bytes=100)
    next(reader.pieces())
    channel.await_that(lambda: channel.n_given == 3)
    reader.close()
    reader.close()
    assert "agent-output" not in {one.name for one in threading.enumerate()}


class Counting(LocalChannel):
    n_bytes = 0

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        piece = super().exchange(outgoing, timeout_s, wake)
        self.n_bytes += len(piece or b"")
        return piece


def _let_leak(channel: Counting, go: Path, n_stacks: int) -> None:
    """A byte into `go` for each hundred stacks, once the reader has the hundred before."""
    wanted = channel.n_bytes + HUNDRED_BYTES
    with open(go, "wb", buffering=0) as step:
        for _ in range(n_stacks // 100):
            assert until(lambda: channel.n_bytes >= wanted)  # noqa: B023
            wanted = channel.n_bytes + HUNDRED_BYTES
            step.write(b"\n")


@pytest.mark.proof
def test_the_rings_are_read_while_the_session_is_busy(tmp_path: Path) -> None:
    """More than the shim's ring holds (8 MiB) comes while the session takes nothing. The program goes on when the reader
    has its last hundred stacks: only a reader that waits for the session would let the ring run full.
    """
    agent, shim = find_parts()
    n_stacks, go = 4096, tmp_path / "go"
    os.mkfifo(go)
    command = ("sh", "-c", f'exec "{built("many_stacks")}" {n_stacks} - < "{go}"')
    options = SessionOptions(command=command, every_stack=True, stack_bytes=4096)
    lines = [*options.lines(), f"shim {shim}"]
    channel = Counting([str(agent), "preload"])
    session = AgentSession("preload", channel, lines)
    status, sent = None, 0
    try:
        for block in session.blocks():
            sent += len(block.payload) if block.kind == BlockKind.EVIDENCE else 0
            if block.kind == BlockKind.STATUS:
                if status is None:  # a slow report: nothing is taken until the command has leaked it all
                    _let_leak(channel, go, n_stacks)
                status = decode_status(block.payload)
    finally:
        session.close()
    assert status is not None and int(status["alloc_objects"]) >= n_stacks
    assert int(status["lost"][Lost.RING_FULL]) == 0 and sent > 8 << 20, sent
