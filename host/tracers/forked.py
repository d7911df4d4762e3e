"""A process that is measured from its fork on: the probes stand in its parent before it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from memleak_android.host.device.target import Channel
from memleak_android.host.payloads import MalformedBlock, decode_processes
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.wire import Block, BlockKind, ProcessEvent


class ForkedSession(AgentSession):
    """A session with `follow` on a parent that forks others too: `only_pids` tells whose books count.

    start: called once the probes are in place; has the parent fork the process, and returns that one's id. The session
    ends with this process.
    """

    def __init__(
        self, channel: Channel, lines: Sequence[str], start: Callable[[], int], put_away: Callable[[], None]
    ) -> None:
        super().__init__("bpf", channel, lines, put_away=put_away)
        self._start_target = start

    def blocks(self) -> Iterator[Block]:
        pid, ended = 0, set[int]()
        for block in super().blocks():
            yield block
            if block.kind == BlockKind.PROCESS:
                ended |= _ended(block)
            elif block.kind == BlockKind.STATUS and not pid:
                pid = self._start_target()
                self.target |= {"pid": pid, "only_pids": [pid]}
            if pid in ended:
                ended.clear()
                self.stop()


def _ended(block: Block) -> set[int]:
    try:
        rows = decode_processes(block.payload)
    except MalformedBlock:
        return set()  # the capture remembers it
    return {int(row["pid"]) for row in rows if row["event"] == ProcessEvent.EXIT}
