"""Functions without code of their own, by DWARF: an abstract instance (DWARF 5, §3.3.8.1) has no address."""

import io
import time
from collections.abc import Iterator
from typing import Any

from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo

from memleak_android.unwind.elf_image import ElfImage

_DEADLINE_S = 5.0
# Of sections: the library reads a table of .debug_abbrev, about 400,000 entries in seven seconds, before it can be stopped.
_BYTES_MAX = {"info": 256 << 20, "abbrev": 4 << 20}
_INLINED = (1, 3)  # DW_INL_inlined, DW_INL_declared_inlined
_SECTIONS = ("info", "abbrev", "str", "str_offsets", "line_str", "addr")
_OTHERS = (
    "aranges",
    "frame",
    "loc",
    "ranges",
    "line",
    "pubtypes",
    "pubnames",
    "loclists",
    "rnglists",
    "sup",
    "types",
)


def is_inlined(elf: ElfImage, name: str) -> bool | None:
    """Whether calls of a function of this last name were replaced by its code. None: not known within some seconds."""
    contents = {section: elf.debug_section(section) for section in _SECTIONS}
    if not contents["info"]:
        return False
    if any(len(contents[section]) > most for section, most in _BYTES_MAX.items()):
        return None
    until = time.monotonic() + _DEADLINE_S
    try:
        for found in _inlined_names(_dwarf(elf, contents)):
            if found == name.encode():
                return True
            if time.monotonic() > until:
                return None
    except Exception:  # noqa: BLE001 - on a damaged file the library raises what its parsers do
        return None
    return False


def _dwarf(elf: ElfImage, contents: dict[str, bytes]) -> DWARFInfo:
    sections: dict[str, DebugSectionDescriptor | None] = {
        f"debug_{name}_sec": DebugSectionDescriptor(io.BytesIO(data), f".debug_{name}", 0, len(data), 0)
        for name, data in contents.items()
    }
    sections |= dict.fromkeys(f"debug_{name}_sec" for name in _OTHERS)
    sections |= dict.fromkeys(("eh_frame_sec", "gnu_debugaltlink_sec"))
    return DWARFInfo(DwarfConfig(True, "", elf.word_bytes), **sections)


def _inlined_names(dwarf: DWARFInfo) -> Iterator[bytes]:
    """After each entry of DWARF its name, or b"" where it is another one: the caller has to look at the time."""
    for unit in dwarf.iter_CUs():
        for entry in unit.iter_DIEs():
            yield _name(entry) if entry.tag == "DW_TAG_subprogram" and _is_abstract(entry) else b""


def _is_abstract(entry: Any) -> bool:
    inline = entry.attributes.get("DW_AT_inline")
    return inline is not None and inline.value in _INLINED


def _name(entry: Any) -> bytes:
    """A member's name is in its declaration."""
    if "DW_AT_specification" in entry.attributes:
        entry = entry.get_DIE_from_attribute("DW_AT_specification")
    named = entry.attributes.get("DW_AT_name")
    return named.value if named is not None and isinstance(named.value, bytes) else b""
