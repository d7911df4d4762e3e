"""Runs of our program by a process that has read it already: a start takes 10 ms instead of 600 ms of CPU time.

A run is a fork of that process, with streams, folder and environment of its own; it ends as the program ends.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Read by the dynamic linker or by Python before our program: only a program that is really started heeds them.
_OF_A_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_")


def run_program(
    words: Sequence[str | Path],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 280,
) -> subprocess.CompletedProcess[str]:
    """`memleak-android WORDS`, its input /dev/null."""
    argv = list(map(str, words))
    given = dict(os.environ if env is None else env)
    names = (name for name in {*given, *os.environ} if name.startswith(_OF_A_START))
    if any(given.get(name) != os.environ.get(name) for name in names):
        program = [sys.executable, "-m", "memleak_android.host", *argv]
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(program, cwd=cwd, env=given, timeout=timeout_s, check=False, **streams)  # type: ignore[call-overload,no-any-return]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = json.dumps(
            {"argv": argv, "cwd": os.fspath(cwd or Path.cwd()), "environment": given}
        ).encode()
        server = _server(os.getpid())
        server.sendall(len(request).to_bytes(4, "little"))
        socket.send_fds(server, [request[:1]], [out.fileno(), err.fileno()])
        server.sendall(request[1:])
        pid = int(_line(server))
        server.settimeout(timeout_s)
        try:
            code = int(_line(server))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            _server.cache_clear()
            raise subprocess.TimeoutExpired(argv, timeout_s) from None
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess(argv, code, *texts)


@functools.cache
def _server(_pid: int) -> socket.socket:
    """The server of this process; ends when this end of the connection is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.program_server", str(theirs.fileno())],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1)
        assert piece, "the server of our program has ended"
        line += piece
    return line


def _serve(connection: socket.socket) -> None:
    from memleak_android.host.cli import main

    while head := connection.recv(4, socket.MSG_WAITALL):
        rest = int.from_bytes(head, "little")
        request, streams, *_ = socket.recv_fds(connection, 1, 2)
        request += connection.recv(rest - 1, socket.MSG_WAITALL)
        pid = os.fork()
        if not pid:
            connection.close()
            _become(json.loads(request), streams)
            main()  # ends in SystemExit
            return
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, object], streams: Sequence[int]) -> None:
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    tempfile.tempdir = None  # of another environment
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    os.chdir(str(request["cwd"]))
    sys.argv = ["memleak-android", *request["argv"]]  # type: ignore[misc]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
