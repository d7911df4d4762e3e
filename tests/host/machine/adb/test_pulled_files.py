"""Copies of a device's files: the right one, once; and a module read out of its process."""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError, TargetError, TracerError
from memleak_android.host.machine.adb.modules import RemoteFiles
from memleak_android.host.machine.adb.pulled_files import PulledFiles, kept_copies
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.machine import FilesInPlace, LocalMachine
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.target import Answer, AppUser
from memleak_android.host.stacks.modules import ModuleFiles, reopen
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.maps import Mapping
from tests.support.fakes.device_here import DeviceHere
from tests.support.running_program import blocked

LIBRARY = find_binary("libmemleak.so", LocalMachine().arch)


class Counting(DeviceHere):
    """What was pulled, and what it claims instead of the truth. n_ending: so many files vanish before they are pulled."""

    def __init__(self, **answers: Answer | str) -> None:
        super().__init__(**answers)
        self.n_ending = 0
        self.pulled: list[str] = []
        self.cut_to: int | None = None
        self.is_gone = False

    def pull(self, path: str, into: Path, *, as_root: bool = False, run_as: AppUser | None = None) -> None:
        if self.is_gone:
            raise DeviceError("adb: device offline")
        self.pulled.append(path)
        if len(self.pulled) <= self.n_ending:
            raise DeviceError(f"{path}: No such file or directory")
        into.write_bytes(Path(path).read_bytes()[: self.cut_to])


def mapping_of(path: Path, offset: int = 0, inode: int | None = None) -> Mapping:
    inode = path.stat().st_ino if inode is None else inode
    return Mapping(0x10000, 0x90000, "r-xp", offset, str(path), "08:01", inode)


def test_a_file_with_a_build_id_is_pulled_once_for_all_sessions_with_a_device(tmp_path: Path) -> None:
    device = Counting()
    for _ in range(2):
        pulled = PulledFiles(device, tmp_path)
        files = ModuleFiles(RemoteFiles(device, pulled))
        assert files.number(1, mapping_of(LIBRARY)) == files.number(1, mapping_of(LIBRARY)) == 0
        assert bytes(files.files[0].data) == LIBRARY.read_bytes()
        pulled.close()
    assert device.pulled == [str(LIBRARY)]
    (copy,) = kept_copies(tmp_path, device.serial, files.files[0].build_id)
    assert copy.read_bytes() == LIBRARY.read_bytes()


class Forging(Counting):
    """As LIBRARY, with its build-id and size, but other code."""

    serial = "forging"

    def pull(self, path: str, into: Path, *, as_root: bool = False, run_as: AppUser | None = None) -> None:
        super().pull(path, into)
        data = into.read_bytes()
        into.write_bytes(data[:8192] + bytes(len(data) - 8192))


def test_a_device_chooses_no_other_devices_files(tmp_path: Path) -> None:
    """Neither in a session nor for a recording, whichever device comes first."""
    build_id = ""
    for device in (Forging(), Counting()):
        for _ in range(2):
            pulled = PulledFiles(device, tmp_path / "kept")
            file = pulled.find([str(LIBRARY)])
            assert file is not None
            is_honest = pulled.copy(file).read_bytes() == LIBRARY.read_bytes()
            assert is_honest == (device.serial != "forging")
            build_id = file.build_id
            pulled.close()
        assert device.pulled == [str(LIBRARY)]
    honest, lying = (
        kept_copies(tmp_path / "kept", serial, build_id) for serial in (Counting().serial, "forging")
    )
    assert [copy.read_bytes() for copy in honest] == [LIBRARY.read_bytes()] and len(lying) == 1


def test_a_device_chooses_no_other_devices_archives(tmp_path: Path) -> None:
    begin, library = 4096, LIBRARY.read_bytes()
    copies = []
    for device, code in ((Forging(), bytes(len(library) - 8192)), (Counting(), library[8192:])):
        archive = tmp_path / f"{device.serial}.apk"
        archive.write_bytes(b"PK\3\4".ljust(begin, b"\0") + library[:8192] + code)
        pulled = PulledFiles(device, tmp_path / "kept")
        file = pulled.find([str(archive)])
        assert file is not None
        copies.append(pulled.copy_part(file, begin, len(library)).read_bytes())
    assert copies[0] != library == copies[1]


def test_a_recording_finds_its_modules_among_the_copies(tmp_path: Path) -> None:
    device = Counting()
    pulled = PulledFiles(device, tmp_path)
    file = pulled.find([str(LIBRARY)])
    assert file is not None and pulled.copy(file).is_file()
    pulled.kept[file.build_id].with_suffix(".7").write_bytes(b"no library")
    there = "/apex/lib64/libx.so"
    found = reopen(there, file.build_id, kept_copies(tmp_path, device.serial, file.build_id))
    assert (found.path, bytes(found.data)) == (there, LIBRARY.read_bytes())
    assert not reopen(there, "00" * 20, kept_copies(tmp_path, device.serial, file.build_id)).data


def test_a_file_without_a_build_id_goes_with_its_session(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no ELF file, and longer than a header has to be, by far")
    pulled = PulledFiles(Counting(), tmp_path / "kept")
    file = pulled.find(["/no/such/file", str(tmp_path / "x")])
    assert file is not None and file.build_id == ""
    copy = pulled.copy(file)
    assert copy.read_bytes() == (tmp_path / "x").read_bytes()
    pulled.close()
    assert not copy.exists() and not (tmp_path / "kept").exists()


def test_what_nothing_goes_on_without(tmp_path: Path) -> None:
    """A file that is not the one is the target's matter, a device that is gone is not."""
    device = Counting()
    finder = RemoteFiles(device, PulledFiles(device, tmp_path))
    assert finder.open(1, mapping_of(LIBRARY, inode=7)) is None
    assert finder.refused == [f"{LIBRARY} could not be pulled: another file has replaced it"]
    with pytest.raises(TargetError, match="another file has replaced it; run as root"):
        finder.needed(1, mapping_of(LIBRARY, inode=7), "run as root")
    device.is_gone = True
    with pytest.raises(DeviceError, match="device offline"):
        finder.needed(1, mapping_of(LIBRARY), "run as root")
    device.is_gone = False
    assert finder.needed(1, mapping_of(LIBRARY), "run as root").read_bytes() == LIBRARY.read_bytes()


def test_a_path_that_vanishes_during_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/PID/map_files of a process that ends: what was opened is read to its end."""
    way, programs = tmp_path / "way", tmp_path / "programs"
    way.write_bytes(LIBRARY.read_bytes())
    programs.mkdir()
    (programs / "stat").write_text(f'#!/bin/sh\nrm -f "{way}"\nexec {shutil.which("stat")} "$@"\n')
    (programs / "stat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    file = PulledFiles(Counting(), tmp_path / "kept").find([str(way), str(LIBRARY)])
    assert file is not None and (file.path, file.size) == (str(way), LIBRARY.stat().st_size)
    assert LIBRARY.read_bytes().startswith(file.head) and file.build_id
    assert not way.exists()


def test_a_path_that_vanishes_before_the_pull(tmp_path: Path) -> None:
    device = Counting()
    device.n_ending = 1
    files = RemoteFiles(device, PulledFiles(device, tmp_path))
    copy = files.copy(1, mapping_of(LIBRARY))
    assert copy is not None and copy.read_bytes() == LIBRARY.read_bytes()
    assert len(device.pulled) == 2 and not files.refused


def test_a_copy_that_came_short_is_not_kept(tmp_path: Path) -> None:
    device = Counting()
    device.cut_to = 9000
    pulled = PulledFiles(device, tmp_path)
    file = pulled.find([str(LIBRARY)])
    assert file is not None
    with pytest.raises(DeviceError, match="changed while it was pulled"):
        pulled.copy(file)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("facts", ["", "0 ", "9 5 5", "0 x 5", "0 5 5 5", "-1 5 5"])
def test_a_device_that_answers_nonsense_has_no_such_file(facts: str, tmp_path: Path) -> None:
    device = Counting(sh=f"{facts}<MARK>\x7fELF")
    assert PulledFiles(device, tmp_path).find(["/a", "/b"]) is None


def test_a_library_inside_an_archive(tmp_path: Path) -> None:
    """As an APK has it: stored, at the next page; another one before it, and something compressed."""
    archive, name, begin = tmp_path / "base.apk", "lib/arm64-v8a/libx.so", 4096
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("classes.dex", b"dex" * 500, zipfile.ZIP_DEFLATED)
        entry = zipfile.ZipInfo(name)
        entry.extra = b"\x35\xd9" + (begin - file.fp.tell() - 34 - len(name)).to_bytes(2, "little")  # type: ignore[union-attr]
        entry.extra += bytes(begin - file.fp.tell() - 34 - len(name))  # type: ignore[union-attr]
        file.writestr(entry, LIBRARY.read_bytes())
        file.writestr("lib/arm64-v8a/liby.so", b"another one")
    device = Counting()
    pulled = PulledFiles(device, tmp_path / "kept")
    files = ModuleFiles(RemoteFiles(device, pulled))
    number = files.number(1, mapping_of(archive, begin + 4096))
    assert number is not None and device.pulled == []
    module = files.files[number]
    assert module.path == f"{archive}!/{name}"
    assert bytes(module.data) == LIBRARY.read_bytes()
    text = next(s for s in module.module.loads if s.is_executable)  # type: ignore[union-attr]
    shown = mapping_of(archive, begin + text.file_offset)
    assert module.vaddr_of(shown, shown.start + 5) == text.vaddr + 5
    assert files.number(1, mapping_of(archive, archive.stat().st_size - 60)) != number
    pulled.close()


@pytest.mark.parametrize("build_id", ["", "../../etc", "AB" * 20, "a*", "ab/cd"])
def test_a_build_id_never_leads_out_of_the_folder(build_id: str, tmp_path: Path) -> None:
    assert kept_copies(tmp_path / "kept", "serial", build_id) == []


APP = AppUser("com.example.app", 10)


@dataclass(frozen=True)
class Running:
    """A process whose program has been deleted. original: what that was."""

    pid: int
    code: Mapping
    original: Path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    program, original = tmp_path / "program", Path(str(shutil.which("cat"))).resolve()
    shutil.copy(original, program)
    with blocked([str(program)]) as pid:
        maps = parse_maps(Path(f"/proc/{pid}/maps").read_text())
        code = next(one for one in maps if one.path == str(program) and one.is_executable)
        program.unlink()
        yield Running(pid, code, original)


def finder(phone: DeviceHere, folder: Path, run_as: AppUser | None = APP) -> RemoteFiles:
    try:
        agent = find_binary("memleakd", local_arch())
    except TracerError as error:
        pytest.skip(str(error))
    files = RemoteFiles(phone, PulledFiles(phone, folder / "kept"))
    files.run_as = run_as
    files.images = ReadingAgent(phone, lambda user: FilesInPlace({"memleakd": agent}), run_as)
    return files


def test_a_deleted_program_unwinds_as_its_file_did(running: Running, tmp_path: Path) -> None:
    phone = DeviceHere()
    files = finder(phone, tmp_path)
    copy = files.copy(running.pid, running.code)
    assert copy is not None and not files.refused
    found, original = Module.from_path(copy), Module.from_path(running.original)
    assert found.build_id == original.build_id != ""
    text = next(one for one in original.loads if one.is_executable)
    assert found.bytes_at(text.vaddr, text.file_bytes) == original.bytes_at(text.vaddr, text.file_bytes)
    vaddrs = range(text.vaddr, text.vaddr + text.file_bytes, 61)
    rows = [original.table.row_at(vaddr) for vaddr in vaddrs]
    assert sum(row is not None for row in rows) > 20
    assert [found.table.row_at(vaddr) for vaddr in vaddrs] == rows
    assert (phone.asked[-1][1], phone.users[-1]) == ("image", APP), (
        "as the app, who may look into its own processes"
    )


def test_what_the_app_alone_can_read_is_pulled_as_the_app(tmp_path: Path) -> None:
    """Code that it has downloaded into its own folder, which the shell may not enter."""

    class Closed(DeviceHere):
        def run(self, argv: Sequence[str], *, run_as: AppUser | None = None, **options: object) -> Answer:  # type: ignore[override]
            answer = super().run(argv, run_as=run_as)
            return answer if run_as else Answer(1, b"", b"")

        def pull(self, path: str, into: Path, *, run_as: AppUser | None = None, **options: object) -> None:  # type: ignore[override]
            assert run_as == APP
            shutil.copy(path, into)

    library = Path(str(shutil.which("cat"))).resolve()
    phone = Closed()
    shown = Mapping(0x1000, 0x2000, "r-xp", 0, str(library), "08:01", library.stat().st_ino)
    copy = finder(phone, tmp_path).copy(1, shown)
    assert copy is not None and copy.read_bytes() == library.read_bytes()
    assert phone.users == [None, APP]


@pytest.mark.parametrize("change", [{"inode": 7}, {"start": 0x1000, "end": 0x2000}])
def test_what_is_mapped_there_now_is_not_taken_for_it(
    running: Running, tmp_path: Path, change: dict[str, int]
) -> None:
    files = finder(DeviceHere(), tmp_path)
    code = replace(running.code, **change)  # type: ignore[arg-type]
    assert files.copy(running.pid, code) is None
    reason = f"nor the memory of process {running.pid} (the file is no longer mapped there)"
    assert files.refused == [f"{code.path} could not be pulled: it cannot be read there, {reason}"]


def test_a_process_that_is_gone(running: Running, tmp_path: Path) -> None:
    files = finder(DeviceHere(), tmp_path)
    assert files.copy(2**22 + 1, running.code) is None
    assert "the memory of process 4194305 cannot be read: No such file or directory" in files.refused[0]


def test_an_agent_that_cannot_be_brought_is_a_reason(running: Running, tmp_path: Path) -> None:
    def bring(user: AppUser | None) -> FilesInPlace:
        raise DeviceError("device x: could not copy files into the folder of com.example.app: no room")

    files = finder(DeviceHere(), tmp_path)
    files.images = ReadingAgent(DeviceHere(), bring, APP)
    assert files.copy(running.pid, running.code) is None
    assert "(device x: could not copy files into the folder of com.example.app: no room)" in files.refused[0]


def test_memory_that_is_not_a_program(tmp_path: Path) -> None:
    """The header says that it is one, and nothing else in it is true."""
    agent = find_binary("memleakd", local_arch())
    hostile = tmp_path / "hostile"
    hostile.write_bytes(b"\x7fELF\2\1\1".ljust(64, b"\xff") + bytes(8192))
    program = (
        "import mmap,sys,os; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "m[0]; print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        ["python3", "-c", program, str(hostile)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline()
        maps = parse_maps(Path(f"/proc/{process.pid}/maps").read_text())
        shown = next(one for one in maps if one.path == str(hostile))
        argv = [agent, "image", str(process.pid), f"{shown.start:x}", str(shown.inode)]
        done = subprocess.run(argv, capture_output=True, timeout=10, check=False)
        process.communicate(b"")
    assert (done.returncode, done.stdout, done.stderr) == (4, b"", b"its headers make no sense\n")
