"""Inputs that are no files to read: no wait, no end, one reason each."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from memleak_android.unwind.file_reading import open_regular, opened, read_file


def irregular(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "fifo")
    (folder / "zeros").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    return {name: folder / name for name in ("fifo", "zeros", "socket")}


@pytest.mark.parametrize("kind", ["fifo", "zeros", "socket"])
def test_what_is_no_regular_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    path, before = irregular(tmp_path)[kind], os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as refused:
        open_regular(path)
    assert refused.value.errno in (errno.EINVAL, errno.ENXIO)  # a socket cannot be opened at all
    assert os.listdir("/proc/self/fd") == before


def test_a_folder_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)


def test_a_file_of_the_kernel_is_read_whole() -> None:
    """Its size is 0."""
    assert read_file("/proc/self/stat", 1 << 16).startswith(b"%d " % os.getpid())


def test_no_more_than_the_bound_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    assert read_file(file, 100) == bytes(100)
    with pytest.raises(OSError, match="larger than 99 bytes"):
        read_file(file, 99)
