"""An initramfs written without root: owners, modes and set-user-id bits are words of the archive, not of our files."""

import stat
from pathlib import Path, PurePosixPath
from typing import BinaryIO

ROOT = 0


class NewcArchive:
    """Writes the "newc" format (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

    A file that is there already is not written again.

    Folders above an entry are made as needed (root, 0755); a folder that is to have another owner or mode
    has to be written before what lies in it.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._written = 0
        self._inode = 1
        self._folders: set[PurePosixPath] = {PurePosixPath("/")}
        self._files: set[PurePosixPath] = set()

    def folder(self, path: str, mode: int = 0o755, uid: int = ROOT, gid: int = ROOT) -> None:
        member = PurePosixPath(path)
        if member not in self._folders:
            self._above(member)
            self._folders.add(member)
            self._entry(member, stat.S_IFDIR | mode, uid, gid)

    def file(
        self, path: str, data: bytes | Path, mode: int = 0o644, uid: int = ROOT, gid: int = ROOT
    ) -> None:
        member = PurePosixPath(path)
        if member in self._files:
            return
        self._files.add(member)
        self._above(member)
        content = data.read_bytes() if isinstance(data, Path) else data
        self._entry(member, stat.S_IFREG | mode, uid, gid, content)

    def link(self, path: str, target: str) -> None:
        member = PurePosixPath(path)
        self._above(member)
        self._entry(member, stat.S_IFLNK | 0o777, ROOT, ROOT, target.encode())

    def close(self) -> None:
        """Writes the last entry; the stream stays open."""
        self._inode = 0
        self._entry(PurePosixPath("/TRAILER!!!"), 0, ROOT, ROOT)
        self._write(bytes(-self._written % 512))

    def _above(self, member: PurePosixPath) -> None:
        if member.parent not in self._folders:
            self.folder(str(member.parent))

    def _entry(self, member: PurePosixPath, mode: int, uid: int, gid: int, data: bytes = b"") -> None:
        name = str(member).lstrip("/").encode() + b"\0"
        links, time, devices, checksum = 1, 0, (0, 0, 0, 0), 0
        fields = (self._inode, mode, uid, gid, links, time, len(data), *devices, len(name), checksum)
        self._inode += 1
        self._write(b"070701" + b"".join(b"%08x" % field for field in fields) + name)
        self._write(bytes(-self._written % 4))
        self._write(data)
        self._write(bytes(-self._written % 4))

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._written += len(data)
