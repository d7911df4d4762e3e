"""Sessions of memleakd, one of them from a process's fork on: configures the agent, reads its blocks, ends it in any state."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from memleak_android.host.errors import MemleakError, TargetError, TracerError
from memleak_android.host.machine.target import Channel
from memleak_android.host.tracers.agent.channel_reader import AgentSilent, ChannelReader
from memleak_android.host.tracers.agent.session_options import PairPlan
from memleak_android.host.wire.blocks import (
    STOP,
    WIRE_VERSION,
    Block,
    BlockKind,
    BlockParser,
    BrokenStream,
    Lost,
    ProcessEvent,
    Reason,
)
from memleak_android.host.wire.payloads import (
    MalformedBlock,
    decode_error,
    decode_hello,
    decode_processes,
    decode_status,
)

_CLOSE_S, _KILLED_S = 3.0, 60.0  # detaching many probes takes long
_ABANDON_S = 0.5
_HOST_SILENCE_S = 120


_ERROR_KINDS: dict[int, type[MemleakError]] = {
    Reason.TARGET_ERROR: TargetError,
    Reason.TRACER_ERROR: TracerError,
}


class AgentDied(TracerError):
    """The agent ended without an END block. Earlier blocks are valid."""


class AgentSession:
    """Implements Tracer over a channel to a running agent.

    A thread reads the output, so consumers of blocks may be slow (channel_reader.py). stop(), detach() and request_snapshot()
    may be called from a signal handler.
    silence_s: a running agent writes four STATUS blocks a second; after this long without output it counts as dead.
    loading_s: the same while it loads its programs, which takes a slow device a minute.
    clean_up: called after the agent has ended, to remove files from the target.
    joins: its target joins the session while that runs, and time counts from then on.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        lines: Sequence[str],
        *,
        silence_s: float = 60,
        loading_s: float = 240,
        clean_up: Callable[[], None] = lambda: None,
        joins: bool = False,
    ) -> None:
        self.name = name
        self.has_begun = not joins
        self._joins = joins
        self.target: dict[str, Any] = {}  # fields of SESSION that only the device has; more may come later
        self.about: dict[str, Any] = {}  # facts about this tracer for the recording
        self.stops = np.empty(0, STOP)  # of the target's threads, before the session
        self.notes: tuple[str, ...] = ()  # for -v
        self.fallback = ""  # why a better tracer is not used
        self.second_choice: Literal["", "bpf"] = ""  # the tracer to use where the target refuses this one
        self.pairs: PairPlan | None = None  # the traced part of --pairs
        self.unplaced: tuple[str, ...] | None = None  # functions asked for and not traced; None = not known
        self._channel = channel
        self._silence_s = silence_s
        self._clean_up = clean_up
        promise = [f"host_silence_s {_HOST_SILENCE_S}"] if channel.is_remote else []
        outgoing = "".join(f"{line}\n" for line in [*lines, *promise, "start"]).encode()
        self._reader = ChannelReader(channel, outgoing, loading_s)

    def answer_functions(self, pairs: PairPlan | None, unplaced: Iterable[str] = ()) -> None:
        """Each tracer calls this; without it the report is never complete. unplaced: sentences about functions of the heap."""
        self.pairs = pairs
        self.unplaced = (*unplaced, *(pairs.problems if pairs else ()))

    @property
    def held_up_s(self) -> float:
        """How long the agent had to wait because its output was not consumed."""
        return self._reader.held_up_s

    def request_snapshot(self) -> None:
        self._reader.say(b"snapshot\n")

    def detach(self) -> None:
        self._reader.say(b"detach\n")

    def resume(self) -> None:
        self._reader.say(b"resume\n")

    def stop(self) -> None:
        self._reader.say(b"stop\n")

    def blocks(self) -> Iterator[Block]:
        """Raises TracerError if no session began, AgentDied if it broke off."""
        parser, is_first = BlockParser(), True
        try:
            for piece in self._reader.pieces():
                for block in parser.feed(piece):
                    if is_first:
                        _check_hello(block)
                        is_first = False
                    if block.kind == BlockKind.STATUS:
                        self._reader.patience_s = self._silence_s
                    self.has_begun |= self._joins and block.kind == BlockKind.PROCESS
                    yield block
                    if block.kind == BlockKind.END:
                        return
            parser.finish()
        except BrokenStream as error:
            if is_first and error.version is not None:
                raise _wrong_version(error.version) from None
            raise AgentDied(f"the agent sent a malformed block ({error.reason})", self._hint()) from None
        except AgentSilent:
            patience_s = self._reader.patience_s
            raise AgentDied(f"the agent did not answer for {patience_s:g} s", self._hint()) from None
        if is_first:
            raise TracerError(f"the agent did not start: {self._channel.end_text()}", self._hint())
        raise AgentDied(f"the agent died: {self._channel.end_text()}", self._hint())

    def close(self) -> None:
        self._end(_CLOSE_S, _KILLED_S)

    def abandon(self) -> None:
        self._end(_ABANDON_S, 0.0)

    def _end(self, patience_s: float, killed_s: float) -> None:
        clean_up, self._clean_up = self._clean_up, lambda: None
        self._reader.close()
        try:
            self._channel.close(patience_s, killed_s)
        finally:
            clean_up()

    def _hint(self) -> str:
        self._reader.close()
        words = self._channel.last_words()
        return f"it said: {words}" if words else "run `memleak-android doctor`"


def reported_error(reason: int, text: str) -> MemleakError:
    """The error of an ERROR block: `what failed, with which datum (way out)`."""
    message, _, hint = text.rstrip(")").rpartition(" (") if text.endswith(")") else (text, "", "")
    return _ERROR_KINDS.get(reason, MemleakError)(message, hint)


def _check_hello(block: Block) -> None:
    if block.kind == BlockKind.ERROR:  # it could not begin, for example because of its configuration
        raise reported_error(*decode_error(block.payload))
    if block.kind != BlockKind.HELLO:
        raise TracerError("the agent did not introduce itself", "build it with `make device`")
    version = int(decode_hello(block.payload)["wire_version"])
    if version != WIRE_VERSION:
        raise _wrong_version(version)


def _wrong_version(version: int) -> TracerError:
    return TracerError(
        f"the agent speaks wire version {version}, this program {WIRE_VERSION}",
        "build both with `make device`",
    )


_LATE_NS = 5 * 10**9  # for blocks that the agent writes before the fork's record


class ZygoteSession(AgentSession):
    """A session with `follow` on a parent with other children too: `only_pids` selects the measured process.

    start: called when the probes are attached; makes the parent fork the process and returns its pid.
    The session ends with this process. Raises TracerError if it was forked before, from a pool of waiting processes (Android's
    USAP pool, ZygoteServer.fillUsapPool() of frameworks/base): its first allocations were not traced.
    """

    def __init__(
        self, channel: Channel, lines: Sequence[str], start: Callable[[], int], clean_up: Callable[[], None]
    ) -> None:
        super().__init__("bpf", channel, lines, clean_up=clean_up)
        self.has_begun = False
        self._start_target = start

    def blocks(self) -> Iterator[Block]:
        pid, deadline_ns, forked, ended = 0, 0, set[int](), set[int]()
        now_ns, is_whole = 0, True
        for block in super().blocks():
            yield block
            if block.kind == BlockKind.PROCESS:
                forked |= _pids(block, ProcessEvent.FORK)
                ended |= _pids(block, ProcessEvent.EXIT)
            elif block.kind == BlockKind.STATUS:
                now_ns, is_whole = _progress(block)
                if not pid:
                    begin_ns = time.monotonic_ns()
                    pid = self._start_target()
                    self.has_begun = True
                    self.target |= {"pid": pid, "only_pids": [pid]}
                    deadline_ns = now_ns + time.monotonic_ns() - begin_ns + _LATE_NS
            is_overdue = block.kind == BlockKind.END or now_ns > deadline_ns
            if pid and is_overdue and is_whole and pid not in forked:
                raise _waited_in_a_pool(pid)
            if pid in ended:
                ended.clear()
                self.stop()


def _progress(status: Block) -> tuple[int, bool]:
    """The target's clock, and whether all records of forks arrived."""
    try:
        row = decode_status(status.payload)
    except MalformedBlock:  # the capture records it
        return 0, False
    return int(row["timestamp_ns"]), not int(row["lost"][Lost.MAPPINGS])


def _waited_in_a_pool(pid: int) -> TracerError:
    return TracerError(
        f"process {pid} was forked before the probes were placed, to wait until an app starts (USAP pool)",
        "switch the pool off (`setprop persist.device_config.runtime_native.usap_pool_enabled false` as root, then"
        " restart the device), or attach without --launch",
    )


def _pids(block: Block, event: ProcessEvent) -> set[int]:
    try:
        rows = decode_processes(block.payload)
    except MalformedBlock:
        return set()  # the capture records it
    return {int(row["pid"]) for row in rows if row["event"] == event}
