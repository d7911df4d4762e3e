"""Files behind mappings: the mapped one, in a device's cut recording the copy with its build-id, or none."""

import json
import mmap
import os
import platform
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.adb.pulled_files import copy_path, device_folder, kept_copies
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.profile.runtime_sites import code_label, is_generated
from memleak_android.host.stacks.file_identities import FileIdentity, RecordedFiles, encode_identities
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles, own_vdso
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import BlockKind
from memleak_android.unwind import file_reading
from memleak_android.unwind.maps import Mapping
from tests.support.workloads import built, run


def test_files_are_taken_by_inode(tmp_path: Path) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(b"not an ELF file")
    files = ModuleFiles(LocalFiles(is_running=False))
    right = Mapping(0x1000, 0x2000, "r-xp", 0, str(path), "08:01", path.stat().st_ino)
    replaced = Mapping(0x3000, 0x4000, "r-xp", 0, str(path), "08:01", path.stat().st_ino + 1)
    numbers = [files.number(1, mapping) for mapping in (right, replaced, right)]
    assert numbers == [0, 1, 0]
    assert [bytes(file.data) for file in files.files] == [b"not an ELF file", b""]


def test_another_file_that_stands_at_the_address_by_now(tmp_path: Path) -> None:
    """A library was closed and another one mapped at its address between two readings."""
    closed, opened = tmp_path / "libclosed.so", tmp_path / "libopened.so"
    closed.write_bytes(b"what was mapped then")
    opened.write_bytes(b"\0" * 4096)
    with opened.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    (now,) = (m for m in parse_maps(Path("/proc/self/maps").read_text()) if m.path == str(opened))
    then = Mapping(now.start, now.end, "r-xp", 0, str(closed), now.device, closed.stat().st_ino)
    files = ModuleFiles(LocalFiles(is_running=True))
    assert [files.number(os.getpid(), mapping) for mapping in (then, now)] == [0, 1]
    mapped.close()
    assert [bytes(file.data) for file in files.files] == [b"what was mapped then", b"\0" * 4096]


def test_anonymous_memory_is_not_a_module() -> None:
    files = ModuleFiles(LocalFiles(is_running=True))
    for path in ("", "[heap]", "[stack]", "anon_inode:x"):
        assert files.number(1, Mapping(0x1000, 0x2000, "r-xp", 0, path)) is None


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        files = ModuleFiles(LocalFiles(is_running=True))
        files.note(os.getpid(), Mapping(0x1000, 0x2000, "r-xp", 0, str(path)))
        assert files.number(os.getpid(), Mapping(0x1000, 0x2000, "r-xp", 0, str(path))) == 0
        assert not files.files[0].data


def test_vdso_is_a_module() -> None:
    data = own_vdso()
    if not data:
        pytest.skip("this process has no vdso")
    files = ModuleFiles(LocalFiles(is_running=True, vdso=data))
    number = files.number(1, Mapping(0x7000, 0x9000, "r-xp", 0, "[vdso]"))
    assert number == 0
    assert files.files[0].module is not None


def test_file_deleted_while_the_process_runs_is_still_read(tmp_path: Path) -> None:
    """A library unlinked after it was mapped: found through /proc/PID/map_files."""
    path = tmp_path / "lib.so"
    path.write_bytes(Path("/proc/self/exe").read_bytes()[:8192])
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 8192, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    path.unlink()
    mappings = parse_maps(Path("/proc/self/maps").read_text())
    (mapping,) = (m for m in mappings if m.path == f"{path} (deleted)")
    files = ModuleFiles(LocalFiles(is_running=True))
    number = files.number(os.getpid(), mapping)
    mapped.close()
    if number is None or not files.files[number].data:
        pytest.skip("map_files needs CAP_CHECKPOINT_RESTORE")
    assert len(files.files[number].data) == 8192


def test_a_file_that_is_not_read_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reading, "COPIED_BYTES_MAX", 100)
    path = tmp_path / "lib\n.so"
    path.write_bytes(bytes(101))
    path.chmod(0o666)
    files = ModuleFiles(LocalFiles(is_running=True))
    number = files.number(
        os.getpid(), Mapping(0x1000, 0x2000, "r-xp", 0, str(path), "08:01", path.stat().st_ino)
    )
    assert number == 0 and not files.files[0].data
    (sentence,) = files.refused
    assert "could not be read: another user may change it" in sentence and "\n" not in sentence


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


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/memfd:jit-cache (deleted)", "[JIT]"),
        ("/memfd:jit-zygote-cache", "[JIT]"),
        ("/dev/ashmem/dalvik-jit-code-cache_1234 (deleted)", "[JIT]"),
        ("[anon:dalvik-jit-code-cache]", "[JIT]"),
        ("[anon:dalvik-zygote-jit-code-cache]", "[JIT]"),
        ("[anon:v8]", "[generated code]"),
        ("[anon]", "[generated code]"),
    ],
)
def test_names_of_such_memory(path: str, label: str) -> None:
    assert is_generated(path) and code_label(path) == label


@pytest.mark.parametrize(
    "path",
    [
        "/memfd:libjit.so (deleted)",
        "/system/lib64/libartjit.so",
        "/data/jit-cache",
        "[vdso]",
        "[stack]",
        "libc.so",
        "",
    ],
)
def test_what_is_a_file_or_the_kernels(path: str) -> None:
    assert not is_generated(path)


def test_memory_without_code_is_not_a_module() -> None:
    files = ModuleFiles(LocalFiles(False))
    code, data = (Mapping(4096, 8192, permissions, 0, "", "00:00", 0) for permissions in ("r-xp", "rw-p"))
    assert (files.number(1, code), files.generated(data)) == (None, None)
    assert files.generated(code) == files.generated(code) == 0
    assert [file.path for file in files.files] == ["[anon]"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program writes x86-64 code")
@pytest.mark.parametrize(
    ("kind", "module", "label"),
    [("memfd", "/memfd:jit-cache (deleted)", "[JIT]"), ("anonymous", "[anon]", "[generated code]")],
)
def test_a_program_that_makes_code(tmp_path: Path, kind: str, module: str, label: str) -> None:
    runs = [run("preload", tmp_path, "--", built("generated_code"), kind, options=["-v"]) for _ in range(2)]
    sites = [next(site for site in one.sites() if site["inuse_space"] == 23 * 1009) for one in runs]
    for one, site in zip(runs, sites, strict=True):
        assert [frame["function"] for frame in site["frames"][1:3]] == ["leak", ""]
        assert site["frames"][2]["module"] == module
        assert f"{label} [{module.removeprefix('/').removesuffix(' (deleted)')}]" in one.err.replace(
            "  ", " "
        )
        assert not any("jit" in note or "anon" in note for note in one.report["notes"])
        assert "link it with -Wl,--build-id" not in one.err
    assert sites[0]["id"] == sites[1]["id"]
