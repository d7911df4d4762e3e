"""The modules of a device's cut recording: found by build-id among the copies, and never on this machine by path."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.adb.pulled_files import copy_path, device_folder, kept_copies
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.stacks.file_identities import FileIdentity, RecordedFiles, encode_identities
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import BlockKind
from memleak_android.unwind.maps import Mapping

LIBRARY = find_binary("libmemleak.so", LocalMachine().arch)
BUILD_ID = "ab" * 20
SERIAL = "emulator-5554"
APK = "/data/app/base.apk"


def shown(path: str, offset: int = 0, inode: int = 77) -> Mapping:
    return Mapping(0x10000, 0x20000, "r-xp", offset, path, "fe:05", inode)


def files_of(tmp_path: Path, *identities: FileIdentity) -> RecordedFiles:
    copy = copy_path(device_folder(tmp_path, SERIAL), BUILD_ID, LIBRARY.stat().st_size)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(LIBRARY.read_bytes())
    capture = Capture()
    capture.add(encode_identities(identities), -1)
    assert not capture.malformed and not capture.is_finished
    return RecordedFiles(capture.files, partial(kept_copies, tmp_path, SERIAL))


def test_a_module_is_the_copy_with_its_build_id(tmp_path: Path) -> None:
    finder = files_of(tmp_path, FileIdentity("/system/lib64/libx.so", "fe:05", 77, BUILD_ID))
    files = ModuleFiles(finder)
    number = files.number(5, shown("/system/lib64/libx.so"))
    assert number is not None and bytes(files.files[number].data) == LIBRARY.read_bytes()
    assert finder.open(5, shown("/system/lib64/libx.so", inode=78)) is None


def test_a_file_of_this_machine_is_never_taken(tmp_path: Path) -> None:
    same = Mapping(0x10000, 0x20000, "r-xp", 0, str(LIBRARY), "", LIBRARY.stat().st_ino)
    descriptor = LocalFiles(is_running=False).open(5, same)
    assert descriptor is not None
    os.close(descriptor)
    assert files_of(tmp_path).open(5, same) is None


def test_libraries_of_one_archive(tmp_path: Path) -> None:
    first = FileIdentity(APK, "fe:05", 77, BUILD_ID, 0x1000, 0x5000, "lib/arm64-v8a/libx.so")
    second = FileIdentity(APK, "fe:05", 77, "cd" * 20, 0x6000, 0x1000, "lib/arm64-v8a/liby.so")
    files = ModuleFiles(files_of(tmp_path, first, second))
    number = files.number(5, shown(APK, 0x3000))
    assert number is not None
    assert files.files[number].path == f"{APK}!/lib/arm64-v8a/libx.so" and files.files[number].data
    assert files.files[number].module.elf_offset == 0x1000  # type: ignore[union-attr]
    other = files.number(5, shown(APK, 0x6000))
    assert other is not None and not files.files[other].data, "there is no copy of it"
    assert files.identities() == [FileIdentity(APK, "fe:05", 77, files.files[number].build_id, 0x1000, len(LIBRARY.read_bytes()), "lib/arm64-v8a/libx.so")]  # fmt: skip


GOOD: dict[str, Any] = {"path": "/x", "device": "fe:05", "inode": 7, "build_id": "ab", "offset": 0, "size": 0, "name": ""}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [1, None, [], {}, GOOD | {"more": 1}, GOOD | {"inode": -1}, GOOD | {"inode": True}, GOOD | {"offset": 1.5},
     GOOD | {"path": 3}, {key: GOOD[key] for key in list(GOOD)[1:]}],
)  # fmt: skip
def test_rows_of_another_shape_are_left_out(row: object) -> None:
    capture = Capture()
    capture.add(payloads.encode_text(BlockKind.FILES, json.dumps([row, GOOD])), -1)
    assert [one.path for one in capture.files] == ["/x"]
