"""Copies of a device's files on this machine, kept by its serial and their build-ids for later sessions."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError, TargetError
from memleak_android.host.machine.parse import decimal
from memleak_android.host.machine.target import AppUser, Target
from memleak_android.unwind.elf_headers import BUILD_ID, ELFCLASS32, MACHINE_NAMES, ElfSections
from memleak_android.unwind.errors import BadElfError
from memleak_android.unwind.file_reading import opened
from memleak_android.unwind.file_writing import (
    appearing,
    forget_oldest,
    make_folder,
    remove,
    temporary_folder,
)

LIMIT_BYTES = 2 << 30  # of all copies together; the longest unused are deleted first
_FILE_BYTES_MAX = 1 << 30
_HEAD_BYTES = 8192  # linkers path program headers and the build-id note here
_PIECE_BYTES = 4 << 20
_BLOCK_BYTES = 4096

# $1: separator of the parts, $2: bytes of the head in blocks; then paths of one file, of which the first good one is
# opened and held open: /proc/PID paths go with their process, which may end between two commands.
_HEAD = """m=$1 n=$2; shift 2; i=0
for f in "$@"; do
  if [ -f "$f" ] && [ -r "$f" ]; then
    { echo $i; stat -L -c '%s %i' /proc/self/fd/0; printf %s "$m"; dd bs=4096 count="$n" 2>/dev/null; exit 0; } <"$f"
  fi
  i=$((i+1))
done; exit 1"""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A readable file on the device.

    head: its first bytes.
    build_id: "" if the head has none.
    run_as: the app that may read it, if the shell may not.
    """

    path: str
    size: int
    inode: int
    head: bytes
    build_id: str
    run_as: AppUser | None = None

    @property
    def machine(self) -> str:
        """Of an ELF file; "" = unknown."""
        return MACHINE_NAMES.get(int.from_bytes(self.head[18:20], "little"), "")

    @property
    def is_64_bit(self) -> bool:
        return self.head[4:5] != bytes([ELFCLASS32])


class PulledFiles:
    """The copies of one session.

    folder: keeps those with a build-id, apart from those of other devices; close() deletes the others.
    kept: those with a build-id that this session used, by build-id.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._all_devices = folder
        self._folder = device_folder(folder, target.serial)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.kept: dict[str, Path] = {}

    def find(self, paths: Sequence[str], run_as: AppUser | None = None) -> RemoteFile | None:
        """The first of these paths that can be read, None if none can. Raises DeviceError.

        It is read as root if possible, else as the shell; run_as: as this app instead.
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
        """Raises DeviceError, OSError, TargetError for a file that is too large."""
        if file.size > _FILE_BYTES_MAX:
            raise TargetError(f"{one_line(file.path)} is larger than {_FILE_BYTES_MAX >> 20} MiB")
        if not file.build_id:
            path = self.temporary_path()
        elif (path := copy_path(self._folder, file.build_id, file.size)).is_file():
            os.utime(path)
            self.kept[file.build_id] = path
            return path
        make_folder(path.parent, 0o700)
        as_root = self._target.has_root and file.run_as is None
        self._target.pull(file.path, path, as_root=as_root, run_as=file.run_as)
        self._check(file, path)
        if file.build_id:
            self.kept[file.build_id] = path
        return path

    def copy_part(self, file: RemoteFile, offset: int, size: int) -> Path:
        """A library stored in an archive: bytes [offset, offset + size), offset a multiple of a page."""
        head = self._read(file, offset, min(size, _HEAD_BYTES))
        build_id = _build_id(head)
        path = copy_path(self._folder, build_id, size) if build_id else self.temporary_path()
        if path.is_file():
            os.utime(path)
        else:
            with appearing(path) as into:
                for done in range(0, size, _PIECE_BYTES):
                    into.write(self._read(file, offset + done, min(_PIECE_BYTES, size - done)))
        if build_id:
            self.kept[build_id] = path
        return path

    def temporary_path(self) -> Path:
        """A path for a copy that close() deletes."""
        if self._temporary is None:
            self._temporary = temporary_folder("memleak-pulled-")
        return Path(self._temporary.name) / secrets.token_hex(8)

    def read(self, file: RemoteFile, offset: int, size: int) -> bytes:
        """Bytes of a file on the device from any offset; fewer at its end. Raises DeviceError."""
        first = offset - offset % _BLOCK_BYTES
        data = self._blocks(file, first // _BLOCK_BYTES, -(-(offset + size - first) // _BLOCK_BYTES))
        return data[offset - first : offset - first + size]

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
        forget_oldest(self._all_devices.glob("*/??/*"), LIMIT_BYTES)

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

    def _check(self, file: RemoteFile, path: Path) -> None:
        """Checks that the copy is the file that find() saw, since it is kept under that name."""
        if path.stat().st_size == file.size:
            with opened(path) as copy:
                if copy.read(len(file.head)) == file.head:
                    return
        remove(path)
        raise DeviceError(
            f"{one_line(file.path)} changed while it was pulled from {self._target.name}", "try again"
        )


def device_folder(folder: Path, serial: str) -> Path:
    """The copies of one device.

    A device chooses the build-id of its files, so no other device's session or recording may use them.
    """
    return folder / hashlib.sha256(serial.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def copy_path(folder: Path, build_id: str, size: int) -> Path:
    """The path of a file's copy. A stripped file and its unstripped build share an id but not a size."""
    return folder / build_id[:2] / f"{build_id[2:]}.{size}"


def kept_copies(folder: Path, serial: str, build_id: str) -> list[Path]:
    """Copies of a device's files with this build-id, of any size."""
    if not BUILD_ID.fullmatch(build_id):
        return []
    return sorted((device_folder(folder, serial) / build_id[:2]).glob(f"{build_id[2:]}.*"))


def _build_id(head: bytes) -> str:
    try:
        build_id = ElfSections(memoryview(head)).build_id
    except BadElfError:
        return ""
    return build_id if BUILD_ID.fullmatch(build_id) else ""
