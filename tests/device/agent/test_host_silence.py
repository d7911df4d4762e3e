"""An agent whose host falls silent without closing anything ends by itself; the target goes on."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from memleak_android.host.wire.blocks import WIRE_VERSION, BlockKind, BlockParser, Reason
from memleak_android.host.wire.payloads import decode_end
from tests.support.preload_session import find_parts

SILENCE_S = 1


@dataclass
class Agent:
    process: subprocess.Popen[bytes]
    output: int
    parser: BlockParser = field(default_factory=BlockParser)
    said: float = 0.0  # when it was last about to hear of its host, by time.monotonic()

    def say_alive(self) -> None:
        assert self.process.stdin
        self.said = time.monotonic()
        self.process.stdin.write(b"alive\n")

    def await_target(self) -> None:
        """Until the command is measured; a busy machine takes its time for that."""
        seen: set[int] = set()
        while BlockKind.MAPS not in seen:
            self.say_alive()
            if select.select([self.output], [], [], SILENCE_S / 4)[0]:
                seen |= {block.kind for block in self.parser.feed(os.read(self.output, 1 << 16))}


@contextmanager
def agent(*, has_host_spoken: bool = True) -> Iterator[Agent]:
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
            if has_host_spoken:
                session.await_target()
            yield session
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            os.close(output)


def test_silence_ends_the_session() -> None:
    with agent() as session:
        pieces = iter(lambda: os.read(session.output, 1 << 16), b"")
        last = [block for piece in pieces for block in session.parser.feed(piece)][-1]
        assert time.monotonic() - session.said > SILENCE_S * 0.7
        assert last.kind == BlockKind.END
        assert int(decode_end(last.payload)["reason"]) == Reason.INPUT_CLOSED


def test_before_it_has_been_heard_once_the_host_has_time() -> None:
    """An agent that loads its programs for minutes reads nothing meanwhile."""
    with agent(has_host_spoken=False) as session:
        time.sleep(SILENCE_S * 1.5)
        assert session.process.poll() is None


def test_a_host_that_speaks_is_there() -> None:
    """Nine times in a row; a machine on which we come too late ourselves has another try."""
    is_late = True
    while is_late:
        is_late = False
        with agent() as session:
            for _ in range(9):
                time.sleep(SILENCE_S / 4)
                before = session.said
                with suppress(BrokenPipeError):
                    session.say_alive()
                is_late |= time.monotonic() - before > SILENCE_S * 0.7
            assert is_late or session.process.poll() is None


def test_silence_while_the_output_is_not_read() -> None:
    """The agent blocks in a write that never ends."""
    with agent() as session:
        writer = os.open(
            f"/proc/{session.process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK
        )  # the agent's stays blocking
        with suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(64))
        os.close(writer)
        assert session.process.wait(50) == 0
