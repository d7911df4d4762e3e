"""Copies of a device's files on this machine: only those that are asked for, kept by build-id for the next session."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memleak_android.host.console import one_line
from memleak_android.host.elf.sections import BadElf, ElfSections
from memleak_android.host.errors import DeviceError, TargetError
from memleak_android.host.machine.parse import decimal
from memleak_android.host.machine.target import AppUser, Target

LIMIT_BYTES = 2 << 30  # of all copies together; the longest unused ones go first
_FILE_BYTES_MAX = 1 << 30
_HEAD_BYTES = 8192  # program headers and the build-id note stand there, as linkers place them
_PIECE_BYTES = 4 << 20
_BLOCK_BYTES = 4096
BUILD_ID = re.compile(r"[0-9a-f]{8,128}")

# $1: what ends each part, $2: bytes of the head in blocks; then ways to one file, the first good one is taken. It is held
# open: ways by /proc/PID go with their process, which may end between two commands.
_HEAD = """m=$1 n=$2; shift 2; i=0
for f in "$@"; do
  if [ -f "$f" ] && [ -r "$f" ]; then
    { echo $i; stat -L -c '%s %i' /proc/self/fd/0; printf %s "$m"; dd bs=4096 count="$n" 2>/dev/null; exit 0; } <"$f"
  fi
  i=$((i+1))
done; exit 1"""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that can be read there. head: its first bytes. build_id: "" where none stands in them.

    run_as: the app that may read it, where the shell may not.
    """

    path: str
    size: int
    inode: int
    head: bytes
    build_id: str
    run_as: AppUser | None = None


class PulledFiles:
    """The copies of one session. folder: where those with a build-id stay; the others go with close().

    kept: of the former, those that this session has asked for, by build-id.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._passing: tempfile.TemporaryDirectory[str] | None = None
        self.kept: dict[str, Path] = {}

    def look(self, paths: Sequence[str], run_as: AppUser | None = None) -> RemoteFile | None:
        """The first of these ways to a file that can be read there, None where none can. Raises DeviceError.

        As root where there is a way to it, as the shell elsewhere; run_as: as this app instead.
        """
        mark = secrets.token_hex(16)
        argv = ["sh", "-c", _HEAD, "sh", mark, str(_HEAD_BYTES // _BLOCK_BYTES), *paths]
        answer = self._target.run(argv, as_root=self._target.has_root and run_as is None, run_as=run_as)
        facts, found, head = answer.out.partition(mark.encode())
        words = facts.split()
        numbers = [number for number in map(decimal, words) if number is not None]
        if answer.code or not found or len(words) != 3 or len(numbers) != 3:
            return None
        index, size, inode = numbers
        if index >= len(paths):
            return None
        return RemoteFile(paths[index], size, inode, head, _build_id(head), run_as)

    def copy(self, file: RemoteFile) -> Path:
        """Raises DeviceError, OSError, TargetError for one that is too large."""
        if file.size > _FILE_BYTES_MAX:
            raise TargetError(f"{one_line(file.path)} is larger than {_FILE_BYTES_MAX >> 20} MiB")
        if not file.build_id:
            place = self.passing_place()
        elif (place := self._kept(file.build_id, file.size)).is_file():
            os.utime(place)
            self.kept[file.build_id] = place
            return place
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        as_root = self._target.has_root and file.run_as is None
        self._target.pull(file.path, place, as_root=as_root, run_as=file.run_as)
        self._check(file, place)
        if file.build_id:
            self.kept[file.build_id] = place
        return place

    def copy_part(self, file: RemoteFile, offset: int, size: int) -> Path:
        """A library stored in an archive: bytes [offset, offset + size), offset a multiple of a page."""
        head = self._read(file, offset, min(size, _HEAD_BYTES))
        build_id = _build_id(head)
        place = self._kept(build_id, size) if build_id else self.passing_place()
        if place.is_file():
            os.utime(place)
        else:
            self._write_part(file, offset, size, place)
        if build_id:
            self.kept[build_id] = place
        return place

    def _write_part(self, file: RemoteFile, offset: int, size: int, place: Path) -> None:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.{secrets.token_hex(8)}.part")  # others copy the same one
        try:
            with part.open("wb") as into:
                for done in range(0, size, _PIECE_BYTES):
                    into.write(self._read(file, offset + done, min(_PIECE_BYTES, size - done)))
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)

    def passing_place(self) -> Path:
        """For a copy that goes with close()."""
        return self._passing_folder() / secrets.token_hex(8)

    def read(self, file: RemoteFile, offset: int, size: int) -> bytes:
        """Bytes of a file there, from any offset on; fewer where it ends. Raises DeviceError."""
        first = offset - offset % _BLOCK_BYTES
        data = self._blocks(file, first // _BLOCK_BYTES, -(-(offset + size - first) // _BLOCK_BYTES))
        return data[offset - first : offset - first + size]

    def close(self) -> None:
        if self._passing is not None:
            self._passing.cleanup()
            self._passing = None
        forget_oldest(self._folder, LIMIT_BYTES)

    def _read(self, file: RemoteFile, offset: int, size: int) -> bytes:
        data = self.read(file, offset, size)
        if len(data) != size:
            raise DeviceError(
                f"{one_line(file.path)} ends before {offset + size} bytes on {self._target.name}"
            )
        return data

    def _blocks(self, file: RemoteFile, first: int, count: int) -> bytes:
        argv = ["dd", f"if={file.path}", f"bs={_BLOCK_BYTES}", f"skip={first}", f"count={count}"]
        limit = count * _BLOCK_BYTES
        as_root = self._target.has_root and file.run_as is None
        answer = self._target.run(argv, as_root=as_root, run_as=file.run_as, limit_bytes=limit, timeout_s=60)
        return answer.out

    def _kept(self, build_id: str, size: int) -> Path:
        return kept_place(self._folder, build_id, size)

    def _check(self, file: RemoteFile, place: Path) -> None:
        """What was pulled is what was looked at: the copy is kept under that name for good."""
        if place.stat().st_size == file.size:
            with place.open("rb") as copy:
                if copy.read(len(file.head)) == file.head:
                    return
        place.unlink()
        raise DeviceError(
            f"{one_line(file.path)} changed while it was pulled from {self._target.name}", "try again"
        )

    def _passing_folder(self) -> Path:
        if self._passing is None:
            self._passing = tempfile.TemporaryDirectory(prefix="memleak-pulled-")
        return Path(self._passing.name)


def kept_place(folder: Path, build_id: str, size: int) -> Path:
    """Where the copy of a file lies. A stripped file and its unstripped build share an id, but no size."""
    return folder / build_id[:2] / f"{build_id[2:]}.{size}"


def kept_copies(folder: Path, build_id: str) -> list[Path]:
    """Copies of files with this build-id, of whatever size."""
    if not BUILD_ID.fullmatch(build_id):
        return []
    return sorted((folder / build_id[:2]).glob(f"{build_id[2:]}.*"))


def forget_oldest(folder: Path, limit_bytes: int) -> None:
    """Deletes the copies longest unused until the rest is no more than so many bytes."""
    found = []
    for path in folder.glob("??/*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def _build_id(head: bytes) -> str:
    try:
        build_id = ElfSections(memoryview(head)).build_id
    except BadElf:
        return ""
    return build_id if BUILD_ID.fullmatch(build_id) else ""
