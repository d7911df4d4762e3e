"""Runs of our program by a process that has read it already: a start takes 10 ms instead of 600 ms of CPU time.

A run is a fork of that process, with streams, folder and environment of its own; it ends as the program ends.
"""

import ctypes
import functools
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Read by the dynamic linker or by Python before our program: only a program that is really started heeds them.
_OF_A_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_libc = ctypes.CDLL(None)


def run_program(
    words: Sequence[str | Path],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 280,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """start_program() with /dev/null as input, to its end. Output of processes that it leaves behind is not waited for."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        with start_program(words, env, cwd=cwd, **streams, **how) as process:
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess(list(map(str, words)), code, *texts)


def start_program(
    words: Sequence[object],
    env: Mapping[str, str] | None = None,
    before: Sequence[str | Path] = (),
    module: str = "",
    **how: Any,
) -> subprocess.Popen[Any]:
    """`BEFORE memleak-android WORDS`.

    module: the server imports it, once; its prepare() is called before the program runs.
    how: streams, cwd, text, start_new_session, as subprocess.Popen has them.
    """
    given = dict(os.environ if env is None else env)
    names = (name for name in {*given, *os.environ} if name.startswith(_OF_A_START))
    is_read_anew = any(given.get(name) != os.environ.get(name) for name in names)
    argv = [*before, sys.executable, "-m", "memleak_android.host", *map(str, words)]
    if is_read_anew or before:
        return subprocess.Popen(argv, env=given, **how)
    return _Forked(argv, executable=module, env=given, **how)


class _Forked(subprocess.Popen[Any]):
    """A child of this process, as that of any Popen, but for who has made it."""

    def _execute_child(
        self, args: Sequence[str], executable: str, preexec_fn: None, close_fds: bool, pass_fds: Sequence[int],
        cwd: Path | None, env: Mapping[str, str], startupinfo: None, creationflags: int, shell: bool,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: bool, gid: None, gids: None, uid: None, umask: int, start_new_session: bool, *_: Any,
    ) -> None:  # fmt: skip
        folder = os.fspath(cwd or Path.cwd())
        request = {"argv": args[3:], "cwd": folder, "environment": env, "leads": start_new_session}
        request["module"] = executable
        given = (p2cread, c2pwrite, errwrite)
        streams = [number if end == -1 else end for number, end in enumerate(given)]
        self.pid = _fork(json.dumps(request).encode(), streams)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def _fork(request: bytes, streams: Sequence[int]) -> int:
    """The process that runs it. Its parent ends at once, and this process gets the orphan: prctl(2)."""
    server = _server(os.getpid())
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        server.sendall(len(request).to_bytes(4, "little"))
        socket.send_fds(server, [request[:1]], streams)
        server.sendall(request[1:])
        return int(_line(server))
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


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
    from memleak_android.host.cli import VERBS, main, verb_named

    for verb in VERBS:
        verb_named(verb)

    while head := connection.recv(4, socket.MSG_WAITALL):
        rest = int.from_bytes(head, "little")
        request, streams, *_ = socket.recv_fds(connection, 1, 3)
        request = json.loads(request + connection.recv(rest - 1, socket.MSG_WAITALL))
        module = importlib.import_module(request["module"]) if request["module"] else None
        reader, writer = os.pipe()
        parent = os.fork()
        if not parent:
            pid = os.fork()
            if pid:
                os.write(writer, b"%d\n" % pid)
                os._exit(0)
            for descriptor in (reader, writer, connection.detach()):
                os.close(descriptor)
            _become(request, streams)
            if module:
                module.prepare()
            main()  # ends in SystemExit
            return
        os.waitpid(parent, 0)
        connection.sendall(os.read(reader, 100))
        for descriptor in (reader, writer, *streams):
            os.close(descriptor)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    if request["leads"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - for good
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    tempfile.tempdir = None  # of another environment
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["memleak-android", *request["argv"]]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
