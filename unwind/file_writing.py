"""Every file and folder that the program writes: another user never chooses what is created, replaced or truncated.

A path is walked folder by folder, and each folder is held open. New bytes go to an unpredictable name in the last folder.
A rename then replaces a regular file. Devices, FIFOs and own descriptors (/dev/stdout) are written to and never replaced.

Refused, each with its reason (UnsafePathError):
- a folder in which another user can rename files: it belongs to that user, or others may write to it and it is not sticky;
- a symbolic link, a device or a FIFO of another user;
- in a folder of many users, an own link or file with a second name, which another user may have made.

Trusted are root, the user of this process and, as root, the user who called sudo (SUDO_UID).
"""

import errno
import grp
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

UNFINISHED = ".unfinished-"  # begins the names of files that are being written
_LINKS_MAX = 40  # MAXSYMLINKS: linux/namei.h
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ACL = "system.posix_acl_access"  # acl(5)


class UnsafePathError(OSError):
    """Another user may choose what a path names. strerror: the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EPERM, reason)


def check(path: Path, force: bool) -> None:
    """Makes missing folders, and a file there that is deleted at once. Raises OSError if `path` cannot be written;
    FileExistsError for a file without `force`.
    """
    with _folder_of(path, 0o777) as (folder, name):
        if _is_stream(folder, name):
            return
        if _status(folder, name) and not force:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        temporary, descriptor = _new(folder, 0o600)
        os.close(descriptor)
        os.unlink(temporary, dir_fd=folder)


def is_stream(path: Path) -> bool:
    """Whether `path` is a device, a FIFO or an own descriptor, which cannot be read back. Raises OSError."""
    with suppress(FileNotFoundError), _folder_of(path) as (folder, name):
        return _is_stream(folder, name)
    return False


@contextmanager
def replacing(path: Path, mode: int = 0o666, folder_mode: int | None = None) -> Iterator[BinaryIO]:
    """A file that appears at `path` after all of it was written, or not at all. Raises OSError.

    folder_mode: of the folders that are made, None = they must exist.
    """
    with _folder_of(path, folder_mode) as (folder, name):
        if _is_stream(folder, name):
            with open(_open_stream(folder, name), "wb") as file:
                yield file
            return
        temporary, descriptor = _new(folder, mode)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                _publish(folder, temporary, descriptor, name)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def appearing(path: Path) -> AbstractContextManager[BinaryIO]:
    """A file of a cache: like replacing(), but readable by its user only, as the folders that are made."""
    return replacing(path, 0o600, 0o700)


def create(path: Path, force: bool = False, mode: int = 0o666) -> int:
    """A descriptor of a new and empty file at `path`, or of the stream there. Raises OSError."""
    with _folder_of(path) as (folder, name):
        if _is_stream(folder, name):
            return _open_stream(folder, name)
        if not force:
            return os.open(name, _NEW, mode, dir_fd=folder)
        temporary, descriptor = _new(folder, mode)
        try:
            _publish(folder, temporary, descriptor, name)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        return descriptor


def append(path: Path) -> int:
    """A descriptor at the end of a regular file, which is made with mode 0600 if it is missing. Raises OSError."""
    with _folder_of(path) as (folder, name):
        # O_NONBLOCK: a FIFO is refused below instead of waited for
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        about = os.fstat(descriptor)
        try:
            if not stat.S_ISREG(about.st_mode):
                raise UnsafePathError(f"{path} is not a regular file")
            _check_owner(folder, about, str(path))
        except UnsafePathError:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def folder_at(path: Path, mode: int | None = None) -> Iterator[int]:
    """A descriptor (O_PATH) of a folder. mode: make it and those above, if missing. Raises OSError."""
    with _folder_of(path / "new", mode) as (folder, _):
        yield folder


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Makes a folder and those above it, if missing. Raises OSError."""
    with folder_at(path, mode):
        pass


def make_new_folder(path: Path) -> None:
    """Makes a folder, and those above it if missing. Raises OSError, FileExistsError."""
    with _folder_of(path, 0o777) as (folder, name):
        os.mkdir(name, dir_fd=folder)


def remove(path: Path) -> None:
    """Deletes a file, or a link itself. A missing file is not an error. Raises OSError."""
    with suppress(FileNotFoundError), _folder_of(path, follow=False) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_folder(path: Path) -> None:
    """Deletes a folder and what is in it, as far as possible. Raises OSError for another user's."""
    with _folder_of(path, follow=False) as (folder, name):
        entered = os.open(name, _FOLDER, dir_fd=folder)
        try:  # rmtree waits for ever where another user's FIFO takes a folder's name
            _check_folder(entered, str(path))
        finally:
            os.close(entered)
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def forget_oldest(paths: Iterable[Path], limit_bytes: int) -> None:
    """Deletes the longest unused files until the rest has at most so many bytes. Others may delete at the same time."""
    found = []
    for path in paths:
        with suppress(OSError):
            status = path.lstat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit_bytes:
            return
        with suppress(OSError):
            remove(path)
            total -= size


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder of mode 0700, deleted at its end. Raises OSError."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=_temporary_root())


def private_folder(parent: Path | None, prefix: str) -> Path:
    """A new folder of mode 0700. parent: None = the temporary directory. Raises OSError."""
    parent = parent or _temporary_root()
    with folder_at(parent):
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def temporary_file(prefix: str, suffix: str) -> tuple[int, Path]:
    """The descriptor and path of a new file of mode 0600. Raises OSError."""
    descriptor, name = tempfile.mkstemp(suffix, prefix, _temporary_root())
    return descriptor, Path(name)


def unnamed_file() -> IO[bytes]:
    """A temporary file without a name. Raises OSError."""
    return tempfile.TemporaryFile(dir=_temporary_root())


def _temporary_root() -> Path:
    root = Path(tempfile.gettempdir())
    with folder_at(root):
        return root


def _new(folder: int, mode: int) -> tuple[str, int]:
    name = UNFINISHED + secrets.token_hex(8)
    return name, os.open(name, _NEW, mode, dir_fd=folder)


def _publish(folder: int, temporary: str, descriptor: int, name: str) -> None:
    """Renames the new file over a regular file, or to a new name."""
    written, replaced = _status(folder, temporary), _status(folder, name)
    if written is None or not os.path.samestat(written, os.fstat(descriptor)):
        raise UnsafePathError(f"{temporary} was replaced while it was written")
    if replaced is not None and not stat.S_ISREG(replaced.st_mode):
        raise UnsafePathError(f"{name} is not a regular file any more")
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _holds_own_descriptors(folder: int) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.stat("/proc/self/fd"))
    except OSError:  # no /proc
        return False


def _is_stream(folder: int, name: str) -> bool:
    """Raises IsADirectoryError, and UnsafePathError for another user's device or FIFO."""
    if name.isdecimal() and _holds_own_descriptors(folder):
        return True
    about = _status(folder, name)
    if about is None or stat.S_ISREG(about.st_mode):
        return False
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    _check_owner(folder, about, name)
    return True


def _open_stream(folder: int, name: str) -> int:
    if _holds_own_descriptors(folder):
        return os.dup(int(name))
    before = _status(folder, name)
    descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    if before is None or not os.path.samestat(before, os.fstat(descriptor)):
        os.close(descriptor)
        raise UnsafePathError(f"{name} was replaced while it was opened")
    return descriptor


@contextmanager
def _folder_of(path: Path, folder_mode: int | None = None, follow: bool = True) -> Iterator[tuple[int, str]]:
    """The descriptor of the folder where `path` ends, and the name in it. follow: a link at the end, too."""
    walk = _Walk(os.fspath(path), folder_mode)
    try:
        name = walk.last_name(follow)
        yield walk.folder, name
    finally:
        walk.close()


class _Walk:
    """folder: descriptor of the folder reached so far. mode: of the folders to make, None = they must exist."""

    def __init__(self, path: str, mode: int | None) -> None:
        self.folder = -1
        self._shown = ""
        self._mode = mode
        self._rest: list[str] = []  # the next name is the last one
        self._links = 0
        self._path = path

    def last_name(self, follow: bool) -> str:
        """Enters all folders. Returns the name behind them, "." for a path that ends in a folder."""
        self._start(self._path)
        while self._rest:
            name = self._rest.pop()
            about = _status(self.folder, name)
            is_link = about is not None and stat.S_ISLNK(about.st_mode)
            if about and is_link and (self._rest or follow):
                if not self._rest and _holds_own_descriptors(self.folder):
                    return name
                self._follow(name, about)
            elif self._rest or name == "..":
                self._enter(name, about is None)
            else:
                return name
        return "."

    def close(self) -> None:
        if self.folder >= 0:
            os.close(self.folder)

    def _start(self, path: str) -> None:
        """Continues with a path from its root, or from the folder reached."""
        if path.startswith("/") or self.folder < 0:
            self.close()
            self.folder = -1
            root = "/" if path.startswith("/") else "."
            self.folder, self._shown = os.open(root, _FOLDER), root
            _check_folder(self.folder, self._shown)
        self._rest += [name for name in reversed(path.split("/")) if name not in ("", ".")]

    def _follow(self, name: str, about: os.stat_result) -> None:
        self._links += 1
        if self._links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        _check_owner(self.folder, about, os.path.join(self._shown, name))
        # The name of a trusted user's link cannot change its meaning here: nobody else can rename or delete it.
        self._start(os.readlink(name, dir_fd=self.folder))

    def _enter(self, name: str, is_missing: bool) -> None:
        if is_missing and self._mode is not None:
            with suppress(FileExistsError):  # another process made it
                os.mkdir(name, self._mode, dir_fd=self.folder)
        entered = os.open(name, _FOLDER, dir_fd=self.folder)
        self.close()
        self.folder, self._shown = entered, os.path.normpath(os.path.join(self._shown, name))
        _check_folder(entered, self._shown)


def _trusted() -> set[int]:
    user, caller = os.geteuid(), os.environ.get("SUDO_UID", "")
    return {0, user, int(caller)} if user == 0 and caller.isdecimal() else {0, user}


def _check_owner(folder: int, about: os.stat_result, shown: str) -> None:
    """Raises UnsafePathError if another user may have put a file, link or device there."""
    if about.st_uid not in _trusted():
        raise UnsafePathError(f"{shown} belongs to {_user(about.st_uid)}")
    if about.st_nlink > 1 and os.fstat(folder).st_mode & 0o022:
        raise UnsafePathError(f"{shown} has a second name, and other users write to its folder")


def _check_folder(folder: int, shown: str) -> None:
    """Raises UnsafePathError if another user can rename files in the folder."""
    about = os.fstat(folder)
    if about.st_uid not in _trusted():
        way_out = f", unless that user is trusted (SUDO_UID={about.st_uid})" if os.geteuid() == 0 else ""
        raise UnsafePathError(
            f"{shown} belongs to {_user(about.st_uid)}, who can rename files in it{way_out}"
        )
    if not about.st_mode & 0o022 or about.st_mode & stat.S_ISVTX:
        return
    if about.st_mode & 0o002 or not _is_own_group(folder, about):
        raise UnsafePathError(f"other users can rename files in {shown} (`chmod +t {shown}` forbids it)")


def _is_own_group(folder: int, about: os.stat_result) -> bool:
    """Whether the folder's group is its owner's own, as Debian and Fedora make one per user, and no ACL adds others."""
    try:
        owner, group = pwd.getpwuid(about.st_uid), grp.getgrgid(about.st_gid)
        names = os.listxattr(f"/proc/self/fd/{folder}")
    except (KeyError, OSError, AttributeError):
        return False
    is_own = owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name
    return is_own and set(group.gr_mem) <= {owner.pw_name} and _ACL not in names


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
