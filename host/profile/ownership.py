"""The user's own code, and others', by --mine, --not-mine and the project's memleak.toml.

mine = ["src", "libcodec.so"]
not-mine = ["src/third_party"]
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from memleak_android.host.errors import UsageError
from memleak_android.unwind.file_reading import opened

FILE_NAME = "memleak.toml"
_FILE_BYTES_MAX = 1 << 20


class Owner(StrEnum):
    MINE = "mine"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Ownership:
    """A pattern names a source file or a module, or a folder that holds some: `src`, `/opt/app/*.so`, `libcodec.so`."""

    mine: Sequence[str] = ()
    not_mine: Sequence[str] = ()

    def owner(self, module: str, file: str | None) -> Owner | None:
        """By the longest pattern that fits the frame's source file or module; None = none fits."""
        rules = [(pattern, Owner.MINE) for pattern in self.mine]
        rules += [(pattern, Owner.OTHERS) for pattern in self.not_mine]
        fitting = [rule for rule in rules if _fits(rule[0], module) or (file and _fits(rule[0], file))]
        return max(fitting, key=lambda rule: len(rule[0]))[1] if fitting else None


NO_PATTERNS = Ownership()


def _fits(pattern: str, path: str) -> bool:
    """Whether the pattern is the path, its last names, or folders in it."""
    begin = "/" if pattern.startswith("/") else "*/"
    return any(fnmatchcase(f"/{path.lstrip('/')}", f"{begin}{pattern.strip('/')}{end}") for end in ("", "/*"))


class _ProjectFile(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    mine: list[str] = []
    not_mine: list[str] = []


def read_ownership(mine: Sequence[str], not_mine: Sequence[str]) -> Ownership:
    """The patterns given and those of the project's file. Raises UsageError where that cannot be used."""
    path, data = _project_file(Path.cwd())
    try:
        found = msgspec.toml.decode(data, type=_ProjectFile)
    except (ValueError, RecursionError) as error:
        hint = "write mine and not-mine as lists of files, folders or modules"
        raise UsageError(f"{path} cannot be used: {error}", hint) from None
    return Ownership((*mine, *found.mine), (*not_mine, *found.not_mine))


def _project_file(folder: Path) -> tuple[Path, bytes]:
    """The path and content of the file in the folder, or further out in the same repository; no content where there is none."""
    trusted = 0, os.geteuid()  # another user does not choose what we show
    is_repository = any((each / ".git").exists() for each in (folder, *folder.parents))
    for each in (folder, *folder.parents) if is_repository else (folder,):
        path = each / FILE_NAME
        try:
            with opened(path) as file:
                if os.fstat(file.fileno()).st_uid in trusted:
                    return path, file.read(_FILE_BYTES_MAX)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", "remove it, or mend it") from None
        if (each / ".git").exists():
            break
    return folder / FILE_NAME, b""
