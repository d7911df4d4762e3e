"""The private folder of stack bytes while a session runs; removed at its end, or at the next start."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memleak_android.host.cache_folder import cache_base
from memleak_android.host.errors import UsageError
from memleak_android.unwind.file_writing import make_folder, private_folder, remove_folder


def spool_root() -> Path:
    """$XDG_CACHE_HOME or ~/.cache, not XDG_RUNTIME_DIR: that is a small tmpfs, and stacks can be gigabytes."""
    return cache_base() / "memleak-android" / "spool"


@contextmanager
def open_spool() -> Iterator[Path]:
    """A new directory of mode 0700, removed on leaving. Leftovers of processes that are gone are removed first."""
    root = _usable_root()
    if root:
        remove_leftovers(root)
    folder, lock = _make_locked(root)
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def _usable_root() -> Path | None:
    """spool_root(), or a folder of this user in the temporary directory where that cannot be used: HOME may be
    another user's, after a change of user id. None: another user has made that folder, to stop us."""
    for root in (spool_root(), Path(tempfile.gettempdir()) / f"memleak-android-spool-{os.getuid()}"):
        with suppress(OSError):
            make_folder(root, 0o700)
            if os.access(root, os.R_OK | os.W_OK | os.X_OK):
                return root
    return None


def _make_locked(root: Path | None) -> tuple[Path, int]:
    """A directory that is ours for as long as the returned descriptor is open: the kernel drops the lock when we die,
    whatever happens, where a process id could be taken by another process or mean another one in a container."""
    while True:
        folder = private_folder(root, f"memleak-android-{os.getpid()}-")
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):  # another start took it for a leftover
            continue
        except OSError as error:
            remove_folder(folder)
            raise UsageError(
                f"{folder.parent} cannot be used: a folder there cannot be locked ({error.strerror})",
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
            remove_folder(entry)
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
