"""A module that cannot be opened is read out of its process, by the real agent."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError, TracerError
from memleak_android.host.machine.adb.modules import RemoteFiles
from memleak_android.host.machine.adb.pulled_files import PulledFiles
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.machine import FilesInPlace
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.machine.target import Answer, AppUser
from memleak_android.unwind.cfi.module import Module
from memleak_android.unwind.maps import Mapping
from tests.support.fakes.device_here import DeviceHere
from tests.support.running_program import blocked

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
