"""A process that is measured from its fork on: the probes stand in its parent before it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.target import Channel
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.wire.blocks import Block, BlockKind, Lost, ProcessEvent
from memleak_android.host.wire.payloads import MalformedBlock, decode_processes, decode_status

_LATE_NS = (
    5 * 10**9
)  # for what the agent writes before the fork is told; blocks wait while the process is started


class ForkedSession(AgentSession):
    """A session with `follow` on a parent that forks others too: `only_pids` tells whose books count.

    start: called once the probes are in place; has the parent fork the process, and returns that one's id. The session
    ends with this process. Raises TracerError where it had been forked before: from a pool of processes that wait to become
    apps (Android's USAP pool, ZygoteServer.fillUsapPool() of frameworks/base), what it allocated first was not seen.
    """

    def __init__(
        self, channel: Channel, lines: Sequence[str], start: Callable[[], int], put_away: Callable[[], None]
    ) -> None:
        super().__init__("bpf", channel, lines, put_away=put_away)
        self.has_begun = False
        self._start_target = start

    def blocks(self) -> Iterator[Block]:
        pid, told_by_ns, forked, ended = 0, 0, set[int](), set[int]()
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
                    told_by_ns = now_ns + time.monotonic_ns() - begin_ns + _LATE_NS
            is_told = block.kind == BlockKind.END or now_ns > told_by_ns
            if pid and is_told and is_whole and pid not in forked:
                raise _waited_in_a_pool(pid)
            if pid in ended:
                ended.clear()
                self.stop()


def _progress(status: Block) -> tuple[int, bool]:
    """The target's clock, and whether no record of a fork can have been lost."""
    try:
        row = decode_status(status.payload)
    except MalformedBlock:  # the capture remembers it
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
        return set()  # the capture remembers it
    return {int(row["pid"]) for row in rows if row["event"] == event}
