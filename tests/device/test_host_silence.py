"""An agent whose host falls silent without closing anything ends by itself; the target goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from memleak_android.host.payloads import decode_end
from memleak_android.host.wire import WIRE_VERSION, Block, BlockKind, BlockParser, Reason
from tests.support.preload_session import find_parts

SILENCE_S = 1


@dataclass
class Agent:
    process: subprocess.Popen[bytes]
    output: int

    def blocks(self) -> list[Block]:
        """Until its end."""
        parser = BlockParser()
        pieces = iter(lambda: os.read(self.output, 1 << 16), b"")
        return [block for piece in pieces for block in parser.feed(piece)]

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
            yield Agent(process, output)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            os.close(output)


def test_silence_ends_the_session() -> None:
    with agent() as session:
        begin = time.monotonic()
        last = session.blocks()[-1]
        assert SILENCE_S * 0.9 < time.monotonic() - begin < SILENCE_S + 5
        assert last.kind == BlockKind.END
        assert int(decode_end(last.payload)["reason"]) == Reason.INPUT_CLOSED


def test_a_host_that_speaks_is_there() -> None:
    with agent() as session:
        assert session.process.stdin
        for _ in range(9):
            time.sleep(SILENCE_S / 4)
            session.process.stdin.write(b"alive\n")
        assert session.process.poll() is None


def test_silence_while_nobody_takes_the_output() -> None:
    """The agent stands in a write that nobody will end."""
    with agent() as session:
        time.sleep(SILENCE_S / 2)
        session.fill_output()
        assert session.process.wait(SILENCE_S + 5) == 0
