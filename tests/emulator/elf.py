"""Dependencies of an ELF file at run time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile


def shared_libraries(roots: Iterable[Path], folders: Iterable[Path]) -> list[Path]:
    """The libraries that ELF files need, and those that these need (DT_NEEDED), as far as `folders` have them."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        for name in needed(waiting.pop()):
            candidates = [folder / name for folder in folders if (folder / name).exists()]
            if candidates and name not in found:
                found[name] = candidates[0]
                waiting.append(candidates[0])
    return sorted(found.values())


def needed(path: Path) -> list[str]:
    """The DT_NEEDED names of an ELF file."""
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        if not isinstance(section, DynamicSection):
            return []
        return [str(tag.needed) for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]  # type: ignore[attr-defined]
