"""Sessions whose target starts once the agent is ready for it, and which of the processes seen count."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.heap.capture import Capture
from memleak_android.host.recording.file import RecordingWriter
from memleak_android.host.session import session as session_module
from memleak_android.host.session.progress import Progress
from memleak_android.host.session.session import Schedule, Session
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.tracers.agent.session import AgentSession, ZygoteSession
from memleak_android.host.tracers.android.wrap import LaunchingSession
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import Block, BlockKind, Lost, ProcessEvent, encode_block
from tests.support.builders.analysed import profile_of
from tests.support.builders.blocks import (
    end,
    evidence,
    evidence_record,
    hello,
    key_rows,
    live_rows,
    process,
    snapshot,
    status,
    write_recording,
)


def processes(event: int, pid: int) -> Block:
    return Block(BlockKind.PROCESS, process(event, pid=pid, timestamp_ns=1))


UNTIL_STOPPED = b""  # nothing more is written before `stop` has come


class Scripted:
    """A channel that yields one block at a time. sent: the lines to the agent."""

    is_remote = True

    def __init__(self, *blocks: Block | bytes) -> None:
        self.pieces = [encode_block(block) if isinstance(block, Block) else block for block in blocks]
        self.sent = bytearray()

    def exchange(self, outgoing: bytearray, timeout_s: float, wake: int = -1) -> bytes | None:
        self.sent += outgoing
        outgoing.clear()
        if self.pieces[:1] == [UNTIL_STOPPED] and b"stop\n" not in self.sent:
            return b""
        return self.pieces.pop(0) if self.pieces else None

    def last_words(self) -> str:
        return ""

    def end_text(self) -> str:
        return "exit code 0"

    def close(self, patience_s: float, killed_s: float) -> None:
        pass


def started() -> tuple[list[int], Callable[[], int]]:
    calls: list[int] = []
    return calls, lambda: calls.append(4711) or 4711


@pytest.mark.parametrize("joins", [True, False])
def test_time_counts_once_the_target_has_joined(joins: bool) -> None:
    channel = Scripted(hello(), status(), processes(ProcessEvent.START, 77), status(), end())
    with closing(AgentSession("plt", channel, [], joins=joins)) as session:  # type: ignore[arg-type]
        seen = [(block.kind, session.has_begun) for block in session.blocks()]
    assert [has_begun for _, has_begun in seen] == [not joins] * 2 + [True] * 3


def test_the_process_is_forked_once_the_probes_are_placed_and_ends_the_session() -> None:
    calls, start = started()
    channel = Scripted(
        hello(), processes(ProcessEvent.START, 320), status(), processes(ProcessEvent.FORK, 4711), status(), processes(ProcessEvent.EXIT, 99),
        status(), processes(ProcessEvent.EXIT, 4711), UNTIL_STOPPED, status(), status(), end(),
    )  # fmt: skip
    session = ZygoteSession(channel, ["wire 2"], start, lambda: None)
    seen = [(block.kind, len(calls), b"stop" in channel.sent) for block in session.blocks()]
    assert [(n, is_stopped) for kind, n, is_stopped in seen if kind == BlockKind.STATUS] == [
        (0, False), (1, False), (1, False), (1, True), (1, True),
    ]  # fmt: skip
    assert channel.sent.count(b"stop\n") == 1
    assert (session.target["pid"], session.target["only_pids"]) == (4711, [4711])


def launched(*blocks: Block | bytes) -> Scripted:
    """The channel of a session whose agent sends these blocks, of which none is missing."""
    channel = Scripted(*blocks)
    found = list(ZygoteSession(channel, [], started()[1], lambda: None).blocks())
    assert len(found) == sum(isinstance(block, Block) for block in blocks)
    return channel


def test_a_process_that_ended_before_its_id_was_known() -> None:
    its = [processes(event, 4711) for event in (ProcessEvent.FORK, ProcessEvent.EXIT)]
    assert b"stop" in launched(hello(), *its, status(), UNTIL_STOPPED, status(), end()).sent


LATE = status(timestamp_ns=10**12)


@pytest.mark.parametrize("rest", [(LATE, end()), (status(), end())])
def test_a_process_that_waited_in_a_pool_is_not_measured_from_the_middle(rest: tuple[Block, ...]) -> None:
    """Android's USAP pool: the zygote's child, but older than the probes."""
    refusal = r"process 4711 was forked before the probes .*; switch the pool off"
    with pytest.raises(TracerError, match=refusal):
        launched(hello(), processes(ProcessEvent.FORK, 4710), status(), *rest, LATE, status())


def test_a_fork_of_which_nothing_is_known_ends_nothing() -> None:
    """Its record was lost, or comes after the next STATUS: while the app is started blocks wait."""
    launched(hello(), status(), status(lost={Lost.MAPPINGS: 1}, timestamp_ns=10**12), end())
    launched(hello(), status(), status(), status(), processes(ProcessEvent.FORK, 4711), status(), end())


def test_a_target_that_cannot_be_started_ends_the_session() -> None:
    def start() -> int:
        raise TargetError("no")

    with pytest.raises(TargetError, match="no"):
        list(ZygoteSession(Scripted(hello(), status(), end()), [], start, lambda: None).blocks())


@pytest.mark.parametrize("kind", [ZygoteSession, LaunchingSession])
def test_a_session_has_begun_when_its_target_is_there(kind: type[AgentSession]) -> None:
    """--duration counts from then on, however long the device takes to start an app."""
    blocks = (hello(), status(), status(), processes(ProcessEvent.FORK, 4711), status(), end())
    more = (TracerError("absent"),) if kind is LaunchingSession else ()
    session: AgentSession = kind(Scripted(*blocks), [], started()[1], *more, lambda: None)
    begun = [session.has_begun for _ in session.blocks()]
    at = 2 if kind is ZygoteSession else 3  # its id is known; it has joined
    assert begun == [n >= at for n in range(len(blocks))]


def test_the_time_is_that_of_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that takes longer to start than it is to be measured is measured for that long all the same."""
    now_s, stopped_at = [0.0], list[float]()
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def start() -> int:
        now_s[0] += 100
        return 4711

    class Ticking(ZygoteSession):
        def blocks(self) -> Iterator[Block]:
            for block in super().blocks():
                now_s[0] += 1
                yield block

    channel = Scripted(
        hello(), status(), status(), processes(ProcessEvent.FORK, 4711), *[status()] * 20, end()
    )
    tracer = Ticking(channel, [], start, lambda: None)
    tracer.stop = lambda: stopped_at.append(now_s[0])  # type: ignore[method-assign]
    with closing(RecordingWriter(tmp_path / "a.memleak", False)) as writer:
        files, progress = ModuleFiles(LocalFiles(False)), Progress(True, False)
        Session(tracer, Capture(), files, writer, progress, Schedule(10 * 10**9)).run()
    assert len(stopped_at) == 1 and 110 < stopped_at[0] < 115


def test_an_app_that_does_not_bring_the_shim() -> None:
    calls, start = started()
    absent = TracerError("no process of it loaded the shim")
    channel = Scripted(hello(), status(), status(), end())
    without = LaunchingSession(channel, [], start, absent, lambda: None, joined_s=-1.0)
    with pytest.raises(TracerError, match="no process of it loaded the shim"):
        list(without.blocks())
    blocks = (hello(), status(), processes(ProcessEvent.START, 5), status(), end())
    assert len(list(LaunchingSession(Scripted(*blocks), [], start, absent, lambda: None).blocks())) == 5
    assert len(calls) == 2


def test_only_the_processes_that_were_meant_count(tmp_path: Path) -> None:
    """A zygote is looked at, and forks others too."""
    live = live_rows({"sequence": 1, "key": 7, "pid": 7, "size": 100}, {"sequence": 2, "key": 8, "pid": 8})
    keys = key_rows(
        {"key": 7, "pid": 7, "alloc_objects": 50, "alloc_bytes": 5000},
        {"key": 8, "pid": 8, "alloc_objects": 9, "alloc_bytes": 900},
    )
    blocks = [
        payloads.encode_text(BlockKind.SESSION, '{"only_pids": [7], "pid": 7}'),
        hello(),
        evidence(evidence_record(sequence=1, key=7, pid=7), evidence_record(sequence=2, key=8, pid=8)),
        *snapshot(live, keys),
        status(alloc_objects=59, alloc_bytes=5900, heap_bytes_of_target=4096),
        end(),
    ]
    path = write_recording(tmp_path / "a.memleak", blocks)
    totals = profile_of(path).totals
    assert (totals.inuse_space, totals.inuse_objects, totals.unattributed_objects) == (100, 1, 0)
    assert (totals.alloc_space, totals.alloc_objects, totals.heap_bytes_of_target) == (5000, 50, None)
