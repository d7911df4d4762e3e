"""Inputs that are no files to read: no wait, no end, one reason each."""

import ctypes
import errno
import mmap
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from memleak_android.unwind import file_reading
from memleak_android.unwind.file_reading import contents, open_regular, opened, read_file
from memleak_android.unwind.user_space_mounts import ServedMount


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
    assert refused.value.errno == errno.EINVAL and refused.value.filename == path
    assert os.listdir("/proc/self/fd") == before


def openings(path: Path, work: Callable[[], object]) -> int:
    """How many times `work` opens the file at `path`, as the kernel sees it (inotify(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(watch, os.fsencode(path), 0x20) >= 0  # IN_OPEN
        work()
        with suppress(BlockingIOError):
            return len(os.read(watch, 1 << 16)) // 16  # struct inotify_event, of a watch without names
        return 0
    finally:
        os.close(watch)


@pytest.mark.parametrize("has_proc", [True, False])
def test_only_a_regular_file_is_opened(
    has_proc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening alone makes a terminal of /dev/ptmx, arms a watchdog and wakes the writer of a FIFO."""
    if not has_proc:
        monkeypatch.setattr(file_reading, "_OWN_DESCRIPTORS", "/proc/nowhere")
    file = tmp_path / "file"
    file.write_bytes(b"x")
    (tmp_path / "link").symlink_to(file)
    assert openings(file, lambda: os.close(open_regular(tmp_path / "link"))) == 1
    fifo = irregular(tmp_path)["fifo"]

    def refused() -> None:
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(fifo)

    assert openings(fifo, refused) == 0


def test_a_link_is_refused_where_none_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(__file__)
    with pytest.raises(OSError) as refused:
        open_regular(tmp_path / "link", follow=False)
    assert refused.value.errno == errno.ELOOP
    os.close(open_regular(__file__, follow=False))


def test_a_file_that_is_replaced_while_it_is_opened_is_refused_without_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reading, "_OWN_DESCRIPTORS", "/proc/nowhere")
    monkeypatch.setattr(file_reading, "served_mounts", lambda path: [])  # else another process opens it
    file, before = tmp_path / "file", os.listdir("/proc/self/fd")
    file.write_bytes(b"x")
    open_by_path = file_reading._open_by_path

    def replace(path: Path, flags: int, about: os.stat_result) -> int:
        (tmp_path / "other").write_bytes(b"y")
        (tmp_path / "other").rename(path)
        return open_by_path(path, flags, about)

    monkeypatch.setattr(file_reading, "_open_by_path", replace)
    with pytest.raises(OSError, match="another file replaced it"):
        open_regular(file)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file: run it as another user")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o200)
    with pytest.raises(PermissionError) as refused:
        open_regular(file)
    assert refused.value.filename == file


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


def contents_of(path: Path, mapped_from: int = 0) -> memoryview:
    with opened(path) as file:
        return contents(file.fileno(), path, mapped_from)


@pytest.mark.parametrize(("mode", "is_mapped"), [(0o644, True), (0o664, False), (0o646, False)])
def test_a_file_is_mapped_only_if_no_other_user_can_change_it(
    mode: int, is_mapped: bool, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 8192)
    file.chmod(mode)
    data = contents_of(file)
    assert isinstance(data.obj, mmap.mmap) == is_mapped and data.readonly and data == b"x" * 8192
    assert not isinstance(contents_of(file, 8193).obj, mmap.mmap)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away: run it as root")
def test_a_file_of_another_user_is_copied(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 8192)
    os.chown(file, 65534, 65534)
    data = contents_of(file)
    os.truncate(file, 0)
    assert data == b"x" * 8192 and not contents_of(file)


def test_no_more_than_the_bound_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reading, "COPIED_BYTES_MAX", 100)
    file = tmp_path / "file"
    file.write_bytes(bytes(101))
    assert len(contents_of(file)) == 101
    file.chmod(0o666)
    with pytest.raises(OSError, match="larger than 100 bytes; read a copy of it") as refused:
        contents_of(file)
    assert refused.value.errno == errno.EFBIG


@pytest.mark.parametrize("stored_at", [[0], [0, 1 << 26], [0, 3 << 25, (1 << 27) - 4096]])
def test_a_sparse_file_is_not_copied(stored_at: list[int], tmp_path: Path) -> None:
    """Its owner pays nothing for its size."""
    file = tmp_path / "file"
    with file.open("wb") as out:
        for offset in stored_at:
            out.seek(offset)
            out.write(b"x" * 4096)
        out.truncate(1 << 27)
        if os.lseek(out.fileno(), 0, os.SEEK_HOLE) != 4096:
            pytest.skip(
                "this file system reports no holes: set TMPDIR to a folder on another (ext4, xfs, tmpfs)"
            )
    assert len(contents_of(file)) == 1 << 27
    file.chmod(0o666)
    with pytest.raises(OSError, match="are not stored") as refused:
        contents_of(file)
    assert refused.value.errno == errno.EFBIG
    os.truncate(file, 1 << 26)
    assert contents_of(file)[:4097] == b"x" * 4096 + b"\0"


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    file.chmod(0o666)
    copy = file_reading._copied

    def cut(descriptor: int, size: int) -> memoryview:
        os.truncate(file, 50)
        return copy(descriptor, size)

    monkeypatch.setattr(file_reading, "_copied", cut)
    with pytest.raises(OSError, match="became shorter"):
        contents_of(file)


@pytest.mark.parametrize("name", ["/proc/self/fd/{}", "/dev/fd/{}", "/proc/self/root{path}", "here"])
def test_our_own_names_hold_where_another_process_opens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While any file system in user space is mounted: `self`, descriptors and the working directory are ours, not that process's."""
    file = tmp_path / "here"
    file.write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_reading, "served_mounts", lambda _: [ServedMount(1, 0)])
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert read_file(name.format(descriptor, path=file), 10) == b"x"
        assert file_reading.file_status(name.format(descriptor, path=file)).st_size == 1
    finally:
        os.close(descriptor)
