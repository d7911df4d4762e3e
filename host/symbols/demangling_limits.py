"""The process that demangles names under limits, and its messages: demangling_process.py starts it.

Request and reply: the payload's bytes (8 bytes, little-endian), then the payload: UTF-8 texts with NULs between them. The
request's first text is the greatest growth; the reply has one text for each name, "" for a name that is refused.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import IO

from memleak_android.host.symbols.name_schemes import text_of_name

# For a request beside what the interpreter occupies: 1024 names of compilers take 3 ms and 1 MB.
CPU_S = 0.2
MEMORY_BYTES = 64 << 20
_LENGTH_BYTES = 8
_PAYLOAD_BYTES_MAX = 1 << 28


def message(texts: Sequence[str]) -> bytes:
    """Raises UnicodeEncodeError for a text that is not Unicode. A text with a NUL arrives as two."""
    return "\0".join(texts).encode()


def send(stream: IO[bytes], payload: bytes) -> None:
    """Raises OSError if the peer has ended."""
    stream.write(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
    stream.flush()


def receive(stream: IO[bytes]) -> list[str]:
    """The texts of a message. Raises EOFError at the end of the stream or for what is not a message."""
    n_bytes = int.from_bytes(_exactly(stream, _LENGTH_BYTES), "little")
    if n_bytes > _PAYLOAD_BYTES_MAX:
        raise EOFError
    return _exactly(stream, n_bytes).decode().split("\0")


def _exactly(stream: IO[bytes], n_bytes: int) -> bytes:
    data = stream.read(n_bytes)
    if len(data) != n_bytes:
        raise EOFError
    return data


def _demangled(name: str, growth: int) -> str:
    text = text_of_name(name)
    return text if len(text) <= growth * len(name) else ""


def _limit_memory() -> None:
    """Where /proc is missing (macOS) the processor time is the only limit: 0.2 s fill some 200 MB."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        with open("/proc/self/statm", encoding="ascii") as statm:
            occupied = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, allowed = resource.getrlimit(resource.RLIMIT_AS)
        most = occupied + MEMORY_BYTES
        if allowed == resource.RLIM_INFINITY or most < allowed:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Answers requests until the standard input ends. Ends by a signal where a request exceeds a limit."""
    _limit_memory()
    # The default action, whatever was inherited: a handler would wait for the demangler to return.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            growth, *names = receive(sys.stdin.buffer)
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            texts = [_demangled(name, int(growth)) for name in names]
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(sys.stdout.buffer, message(texts))


if __name__ == "__main__":
    main()
