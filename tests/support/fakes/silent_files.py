"""A file system in user space (FUSE) that serves one file, and on request never answers again.

    python -m tests.support.fakes.silent_files FOLDER FILE

Mounts itself on FOLDER, where `file` then has the contents of FILE; prints a line when it is there. After SIGUSR1 it takes
requests and answers none. Protocol: include/uapi/linux/fuse.h, version 7.31.
"""

import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT_NODE, FILE_NODE = 1, 2
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 29
)  # fmt: skip
INTERRUPT, BATCH_FORGET = 36, 42
UNANSWERED = (FORGET, INTERRUPT, BATCH_FORGET)
KEEP_CACHE = 2  # FOPEN_KEEP_CACHE
MNT_DETACH = 2
_IN = struct.Struct("<IIQQIIII")  # struct fuse_in_header
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")


@dataclass(frozen=True)
class SilentFile:
    """path: of the only file. silence: makes its server take requests and answer none."""

    path: Path
    silence: Callable[[], None]


@contextmanager
def serving(folder: Path, contents: Path) -> Iterator[SilentFile]:
    """At the end the server is killed, which ends all that wait for it."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.support.fakes.silent_files", folder, contents]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as server:
        try:
            assert server.stdout.readline() == b"mounted\n"
            yield SilentFile(folder / "file", lambda: server.send_signal(signal.SIGUSR1))
        finally:
            server.kill()
            ctypes.CDLL(None).umount2(os.fsencode(folder), MNT_DETACH)


def _attributes(node: int, size: int) -> bytes:
    mode = 0o40755 if node == ROOT_NODE else 0o100755
    return _ATTR.pack(node, size, size // 512 + 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes, contents: bytes) -> bytes | int:
    """What follows the header of the answer, or an error number."""
    attributes = _attributes(node, len(contents))
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, 0)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return errno.ENOENT
        return struct.pack("<QQQQII", FILE_NODE, 0, 3600, 0, 0, 0) + _attributes(FILE_NODE, len(contents))
    if opcode == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, KEEP_CACHE, 0)
    if opcode == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        return contents[offset : offset + size]
    if opcode == STATFS:
        return bytes(80)
    return b"" if opcode in (RELEASE, RELEASEDIR, FLUSH) else errno.ENOSYS


def serve(folder: str, contents: bytes) -> None:
    is_silent = []
    signal.signal(signal.SIGUSR1, lambda *_: is_silent.append(True))
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(folder), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if is_silent or opcode in UNANSWERED:
            continue
        reply = answer(opcode, node, request[_IN.size :], contents)
        error, payload = (-reply, b"") if isinstance(reply, int) else (0, reply)
        os.write(device, struct.pack("<IiQ", 16 + len(payload), error, unique) + payload)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]).read_bytes())
