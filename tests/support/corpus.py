"""The captured Android and Linux stacks with frames that another unwinder pins, and how to load them."""

import json
from pathlib import Path
from typing import Any

import pytest

from memleak_android.unwind import arch_by_name
from memleak_android.unwind.maps import Mapping
from memleak_android.unwind.snapshot.folder import MemoryFile, SnapshotOptions

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
CASES = (
    "apk_rx_arm64",
    "apk_rx_unreadable_arm64",
    "bluetooth_arm64__pc_2",
    "bluetooth_arm64__pc_4",
    "debug_frame_first_x86",
    "eh_frame_hdr_begin_x86_64",
    "gnu_debugdata_arm",
    "invalid_elf_offset_arm",
    "jit_map_arm",
    "maps_compiled_arm64__28667",
    "offset_arm",
    "photos_reset_arm64",
    "straddle_arm",
    "straddle_arm64",
)


def case_folder(name: str) -> Path:
    """The folder of a case; the test is skipped where the corpus is absent."""
    folder = CORPUS / name
    if not folder.is_dir():
        pytest.skip(f"the corpus is not beside the repository ({folder})")
    return folder


def expectation(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())


def number(value: int | str) -> int:
    return int(value, 16) if isinstance(value, str) else value


def options_of(expected: dict[str, Any], **more: Any) -> SnapshotOptions:
    """expected.json's `loader`, and the peer's rule for the pc that a signal interrupted."""
    loader = expected["loader"]
    memory_files = loader.get("memory_files")
    return SnapshotOptions(
        arch=arch_by_name(expected["arch"]),
        signature_mask=number(loader["pac_mask"]) if "pac_mask" in loader else None,
        with_memory=not loader.get("no_memory", False),
        memory_files=None if memory_files is None else tuple(memory_files),
        extra_memory=tuple(
            MemoryFile(m["file"], number(m["start"]), number(m["file_offset"]), number(m["size"]))
            for m in loader.get("extra_memory", ())
        ),
        extra_maps=tuple(
            Mapping(
                number(m["start"]),
                number(m["end"]),
                m["flags"].split()[0],
                number(m["offset"]),
                m["name"],
                is_symfile="JIT_SYMFILE" in m["flags"],
            )
            for m in loader.get("extra_maps", ())
        ),
        max_frames=expected["max_frames"],
        like_libunwindstack=True,
        **more,
    )
