"""Files behind mappings: the mapped one or none."""

import mmap
import os
from pathlib import Path

import pytest

from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles, own_vdso
from memleak_android.unwind import file_reading
from memleak_android.unwind.maps import Mapping


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
