"""An agent whose host falls silent without closing anything ends by itself; the target goes on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from memleak_android.host.payloads import decode_end
from memleak_android.host.wire import WIRE_VERSION, Block, BlockKind, BlockParser, Reason
from tests.support.preload_session import find_parts

SILENCE_S = 1


@dataclass
class Agent:
    process: subprocess.Popen[bytes]
    output: int
    parser: BlockParser = field(default_factory=BlockParser)

    def say_alive(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"alive\n")

    def await_target(self) -> None:
        """Until the command is measured; a busy machine takes its time for that."""
        seen: set[int] = set()
        while BlockKind.MAPS not in seen:
            self.say_alive()
            if select.select([self.output], [], [], SILENCE_S / 4)[0]:
                seen |= {block.kind for block in self.parser.feed(os.read(self.output, 1 << 16))}

    def blocks(self) -> list[Block]:
        """Until its end."""
        pieces = iter(lambda: os.read(self.output, 1 << 16), b"")
        return [block for piece in pieces for block in self.parser.feed(piece)]

    def fill_output(self) -> None:
        """By a description of our own, so that the agent's stays blocking."""
        writer = os.open(f"/proc/{self.process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(64))
        os.close(writer)


@contextmanager
def agent() -> Iterator[Agent]:
    """A session on a command that outlives it, and then goes too."""
    program, shim = find_parts()
    lines = [f"wire {WIRE_VERSION}", "arg sleep", "arg 60", f"shim {shim}", f"host_silence_s {SILENCE_S}"]
    output, write_end = os.pipe()
    with subprocess.Popen(
        [program, "preload"], stdin=subprocess.PIPE, stdout=write_end, bufsize=0, start_new_session=True
    ) as process:
        os.close(write_end)
        assert process.stdin
        process.stdin.write("".join(f"{line}\n" for line in [*lines, "start"]).encode())
        try:
            session = Agent(process, output)
            session.await_target()
            yield session
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            os.close(output)


def test_silence_ends_the_session() -> None:
    with agent() as session:
        begin = time.monotonic()
        last = session.blocks()[-1]
        assert SILENCE_S * 0.7 < time.monotonic() - begin < SILENCE_S + 10
        assert last.kind == BlockKind.END
        assert int(decode_end(last.payload)["reason"]) == Reason.INPUT_CLOSED


def test_a_host_that_speaks_is_there() -> None:
    with agent() as session:
        for _ in range(9):
            time.sleep(SILENCE_S / 4)
            session.say_alive()
        assert session.process.poll() is None


def test_silence_while_nobody_takes_the_output() -> None:
    """The agent stands in a write that nobody will end."""
    with agent() as session:
        session.fill_output()
        assert session.process.wait(SILENCE_S + 10) == 0
