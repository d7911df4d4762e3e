"""Files that the program writes, beside a second user who wants another file written."""

import os
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from memleak_android.unwind.file_writing import (
    UnsafePathError,
    append,
    check,
    create,
    folder_at,
    is_stream,
    make_folder,
    make_new_folder,
    private_folder,
    remove,
    remove_folder,
    replacing,
    temporary_folder,
)
from tests.support.builders.second_user import (
    UID,
    as_second_user,
    needs_second_user,
    null_device,
    open_to_all,
    second_user_repeats,
)


def put(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"ours")


def put_at_once(path: Path) -> None:
    os.close(create(path, force=True))


def put_more(path: Path) -> None:
    os.close(append(path))


WRITERS = pytest.mark.parametrize("write", [put, put_at_once, put_more, lambda path: check(path, True)])


@pytest.fixture
def shared() -> Iterator[Path]:
    """A sticky folder of all users, as /tmp."""
    with open_to_all() as folder:
        yield folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("victim")
    return path


def is_intact(victim: Path) -> bool:
    return (
        victim.read_text() == "victim" and victim.stat().st_nlink == 1 and len(os.listdir(victim.parent)) == 1
    )


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report"
    with replacing(path) as file:
        file.write(b"one")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(bytes(1 // 0))
    assert path.read_bytes() == b"one" and os.listdir(tmp_path) == ["report"]


def test_a_new_file_is_the_callers_alone(tmp_path: Path) -> None:
    os.close(create(tmp_path / "new", mode=0o600))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create(tmp_path / "new")
    with pytest.raises(FileExistsError):
        check(tmp_path / "new", force=False)
    with pytest.raises(IsADirectoryError):
        check(tmp_path, force=True)
    check(tmp_path / "missing/folder/file", force=False)
    assert not any((tmp_path / "missing/folder").iterdir())
    assert create(tmp_path / "new", force=True) > 0


@needs_second_user
@WRITERS
def test_another_users_link_is_not_followed(
    shared: Path, victim: Path, write: Callable[[Path], None]
) -> None:
    as_second_user(lambda: os.symlink(victim, shared / "out"))
    with pytest.raises(UnsafePathError, match=r"out belongs to (user nobody|uid 65534)$"):
        write(shared / "out")
    assert is_intact(victim) and os.listdir(shared) == ["out"]


@needs_second_user
def test_another_users_link_to_a_folder_is_not_followed(shared: Path, victim: Path) -> None:
    as_second_user(lambda: os.symlink(victim.parent, shared / "out"))
    for write in (put, put_at_once, put_more, make_folder, make_new_folder, remove, remove_folder):
        with pytest.raises(UnsafePathError, match="out belongs to"):
            write(shared / "out/victim")
    assert is_intact(victim)


@WRITERS
def test_ones_own_link_is_followed(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/../folder/file")
    write(tmp_path / "link")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "folder") == (["file"] if (tmp_path / "link").exists() else [])


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        put(tmp_path / "link")


@needs_second_user
def test_an_own_link_that_another_user_has_moved_is_not_followed(shared: Path, victim: Path) -> None:
    (shared / "ours").symlink_to(victim)
    os.link(
        shared / "ours", shared / "out", follow_symlinks=False
    )  # another user can, without protected_hardlinks
    with pytest.raises(UnsafePathError, match="out has a second name"):
        put(shared / "out")
    assert is_intact(victim)


@needs_second_user
@pytest.mark.parametrize("write", [put, put_at_once])
def test_a_hard_link_is_replaced_and_its_file_stays(
    shared: Path, victim: Path, write: Callable[[Path], None]
) -> None:
    os.link(victim, shared / "out")
    with pytest.raises(UnsafePathError, match="out has a second name"):
        put_more(shared / "out")
    write(shared / "out")
    assert is_intact(victim)


@needs_second_user
@WRITERS
@pytest.mark.parametrize(
    ("mode", "owner", "group", "reason"),
    [
        (0o755, UID, UID, "belongs to .*, who can rename files in it"),
        (0o1777, UID, UID, "belongs to .*, who can rename files in it"),
        (0o777, 0, 0, "other users can rename files in"),
        (0o775, 0, UID, "other users can rename files in"),
    ],
)
def test_a_folder_in_which_another_user_can_rename(
    write: Callable[[Path], None], mode: int, owner: int, group: int, reason: str
) -> None:
    with open_to_all(mode) as folder:
        (folder / "below").mkdir()
        os.chown(folder, owner, group)
        for path in (folder / "out", folder / "below/out"):
            with pytest.raises(UnsafePathError, match=reason):
                write(path)
        assert os.listdir(folder) == ["below"] and not os.listdir(folder / "below")


@needs_second_user
def test_the_user_who_called_sudo_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(UID))
    with open_to_all(0o755) as folder:
        os.chown(folder, UID, UID)
        put(folder / "out")
        assert (folder / "out").read_text() == "ours"


@needs_second_user
def test_another_user_trusts_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1")
    with open_to_all(0o755) as folder:
        os.chown(folder, 1, 1)
        folder.chmod(0o777)

        def write() -> None:
            with pytest.raises(UnsafePathError):
                put(folder / "out")

        as_second_user(write)


@needs_second_user
def test_ones_own_group_may_write_to_a_folder_but_no_other_by_acl() -> None:
    with open_to_all(0o775) as folder:  # group root, which has no other members
        put(folder / "out")
        entries = [
            (1, -1),
            (2, UID),
            (4, -1),
            (16, -1),
            (32, -1),
        ]  # linux/posix_acl_xattr.h; all may do everything
        acl = b"".join(struct.pack("<HHi", tag, 7, who) for tag, who in entries)
        try:
            os.setxattr(folder, "system.posix_acl_access", struct.pack("<I", 2) + acl)
        except OSError:
            pytest.skip("the file system of TMPDIR has no ACLs")
        folder.chmod(0o775)
        with pytest.raises(UnsafePathError):
            put(folder / "out")


@needs_second_user
def test_temporary_files_of_another_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_to_all(0o755) as folder:
        os.chown(folder, UID, UID)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        for write in (temporary_folder, lambda prefix: private_folder(None, prefix)):
            with pytest.raises(UnsafePathError):
                write("memleak-")
        assert not os.listdir(folder)


def test_a_fifo_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    found: list[bytes] = []
    for path in (tmp_path / "fifo", tmp_path / "link"):
        reader = threading.Thread(target=lambda: found.append((tmp_path / "fifo").read_bytes()))
        reader.start()
        assert is_stream(path)
        put(path)
        reader.join()
    assert found == [b"ours", b"ours"] and stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    check(tmp_path / "fifo", force=False)
    with pytest.raises(OSError, match=r"not a regular file|No such device"):
        append(tmp_path / "fifo")


@needs_second_user
@WRITERS
def test_another_users_fifo_is_not_written_to(shared: Path, write: Callable[[Path], None]) -> None:
    as_second_user(lambda: os.mkfifo(shared / "fifo"))
    with pytest.raises(OSError, match=r"belongs to|not a regular file|No such device"):
        write(shared / "fifo")


@needs_second_user
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    device = null_device(tmp_path)
    before = device.stat()
    put(device)
    put_at_once(device)
    assert os.path.samestat(device.stat(), before) and stat.S_ISCHR(device.stat().st_mode)


def test_own_descriptors_are_written_to(tmp_path: Path) -> None:
    """/dev/stdout and >(gzip) are such; so is a file that has no name."""
    named = tmp_path / "named"
    for descriptor in (
        os.open(tmp_path, os.O_RDWR | os.O_TMPFILE),
        os.open(named, os.O_RDWR | os.O_CREAT),
    ):
        named.unlink(missing_ok=True)
        for path in (f"/dev/fd/{descriptor}", f"/proc/self/fd/{descriptor}"):
            put(Path(path))
        assert os.pread(descriptor, 100, 0) == b"oursours"
        os.close(descriptor)
        with pytest.raises(OSError, match=r"Bad file descriptor|No such file|Is a directory"):
            put(Path(f"/dev/fd/{descriptor}"))
    assert not os.listdir(tmp_path)


def test_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        put(Path("out"))


def test_folders_are_made_on_the_way(tmp_path: Path) -> None:
    make_folder(tmp_path / "a/b", 0o700)
    make_folder(tmp_path / "a/b", 0o700)
    make_new_folder(tmp_path / "a/c/d")
    with pytest.raises(FileExistsError):
        make_new_folder(tmp_path / "a/c/d")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    with folder_at(tmp_path / "a") as folder:
        assert os.path.samestat(os.fstat(folder), (tmp_path / "a").stat())


@needs_second_user
@pytest.mark.parametrize("n_writes", [1000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_what_another_user_swaps_meanwhile(shared: Path, victim: Path, n_writes: int) -> None:
    """Writes while a second user puts links, FIFOs and files at the name, and a folder's link above it."""

    makers = [os.mkfifo, lambda path: os.symlink(victim, path), lambda path: path.write_text("x")]

    def swap() -> None:
        for make in makers:
            for path in ("out", "folder"):
                (shared / "theirs").unlink(missing_ok=True)
                make(shared / "theirs")
                with suppress(OSError):  # where it is ours
                    os.rename(shared / "theirs", shared / path)
        for path in ("out", "folder"):
            with suppress(OSError):
                os.unlink(shared / path)

    n_written = n_refused = 0
    with second_user_repeats(swap):
        for number in range(n_writes):
            write, path = ((put, "out"), (put_at_once, "out"), (put_folder, "folder"))[number % 3]
            try:
                write(shared / path)
                n_written += 1
            except OSError:
                n_refused += 1
            with suppress(OSError):  # theirs
                remove(shared / path) if path == "out" else remove_folder(shared / path)
    assert is_intact(victim)
    assert n_written > 10 and n_refused > 10


def put_folder(path: Path) -> None:
    make_folder(path)
    put(path / "victim")


MOUNTED_OVER = """
import os, subprocess, sys
from pathlib import Path
from memleak_android.unwind.file_writing import folder_at, replacing
folder = Path(sys.argv[1])
mount = lambda *words: subprocess.run(["mount", *words], check=True)
(folder / "under").write_text("under"), (folder / "out").write_text("out")
mount("--bind", folder / "under", folder / "out")
try:
    with replacing(folder / "out") as file: file.write(b"ours")
except OSError as error: print(error.strerror)
with replacing(folder / "other") as file:
    file.write(b"ours")
    mount("-t", "tmpfs", "none", folder)
print(os.listdir(folder))
"""


@needs_second_user
def test_mounts_over_the_file_and_over_its_folder(tmp_path: Path) -> None:
    """What is mounted over the path after it was opened is not written to."""
    argv = ["unshare", "--mount", sys.executable, "-c", MOUNTED_OVER, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("mounting is not permitted here")
    assert done.stdout.splitlines() == ["Device or resource busy", "[]"], done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "under": "under",
        "out": "out",
        "other": "ours",
    }
