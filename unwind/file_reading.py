"""Every file that a user, a recording or a process names: regular files only, and no more bytes than a bound.

A FIFO would be waited for, /dev/zero has no end, and some files of /proc and /sys (kmsg, trace_pipe) wait for an event.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_PIECE_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor. flags: more of open(2). Raises OSError, and ValueError for a path with a NUL."""
    descriptor = os.open(path, _FLAGS | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is not a regular file; write it to one first", path)


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """A stream. Raises as open_regular()."""
    return open(open_regular(path), "rb")


def read_file(path: str | os.PathLike[str], bytes_max: int) -> bytes:
    """All of a file. Raises as open_regular(), and OSError (EFBIG) for a larger one."""
    data = bytearray()
    with opened(Path(path)) as file:
        while piece := file.read(
            min(_PIECE_BYTES, bytes_max + 1 - len(data))
        ):  # read() allocates what it may read
            data += piece
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is larger than {bytes_max:,} bytes", path)
    return bytes(data)
