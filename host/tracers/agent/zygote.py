"""A session that traces a process from its fork on, by probes in its parent (an app's zygote)."""

import time
from collections.abc import Callable, Iterator, Sequence

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.target import Channel
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.wire.blocks import Block, BlockKind, Lost, ProcessEvent
from memleak_android.host.wire.payloads import MalformedBlock, decode_processes, decode_status

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
