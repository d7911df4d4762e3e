"""The private folder of stack bytes while a session runs; removed at its end, or at the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memleak_android.host.cache_folder import cache_base
from memleak_android.host.errors import UsageError


def spool_root() -> Path:
    """$XDG_CACHE_HOME or ~/.cache, not XDG_RUNTIME_DIR: that is a small tmpfs, and stacks can be gigabytes."""
    return cache_base() / "memleak-android" / "spool"


@contextmanager
def open_spool() -> Iterator[Path]:
    """A new directory of mode 0700, removed on leaving. Leftovers of processes that are gone are removed first."""
    root = _usable_root()
    remove_leftovers(root)
    folder, lock = _make_locked(root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _usable_root() -> Path:
    """spool_root(), or a folder of this user in the temporary directory where that cannot be used: HOME may be
    another user's, after a change of user id."""
    root = spool_root()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(root, os.R_OK | os.W_OK | os.X_OK):
            return root
    except OSError:
        pass
    root = Path(tempfile.gettempdir()) / f"memleak-android-spool-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return root
    raise UsageError(f"{root} is not a private folder of this user", "set XDG_CACHE_HOME to one")


def _make_locked(root: Path) -> tuple[Path, int]:
    """A directory that is ours for as long as the returned descriptor is open: the kernel drops the lock when we die,
    whatever happens, where a process id could be taken by another process or mean another one in a container."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))  # mkdtemp gives mode 0700
        try:
            lock = _lock(folder)
        except (
            BlockingIOError,
            FileNotFoundError,
        ):  # another start took it for a leftover before it was locked
            continue
        except OSError as error:
            folder.rmdir()
            raise UsageError(
                f"{root} cannot be used: a folder there cannot be locked ({error.strerror})",
                "set XDG_CACHE_HOME to a folder on a local disk",
            ) from None
        if folder.exists():
            return folder, lock
        os.close(lock)  # it was taken for one, and is gone


def remove_leftovers(root: Path) -> None:
    """Removes the directories under `root` that no live process holds."""
    for entry in root.iterdir():
        with suppress(OSError):
            lock = _lock(entry)
            shutil.rmtree(entry, ignore_errors=True)
            os.close(lock)


def _lock(directory: Path) -> int:
    """Raises OSError: BlockingIOError where another process has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
