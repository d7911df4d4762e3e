"""A command's file and libraries, found without running it; process facts, compared with our own /proc."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError, TargetError
from memleak_android.host.machine.adb.process import RemoteProcess
from memleak_android.host.machine.adb.program import fetch_until, find_program, loaded_objects
from memleak_android.host.machine.adb.pulled_files import PulledFiles
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.local.process import LocalProcess
from memleak_android.host.machine.parse import parse_listed
from memleak_android.host.machine.target import Answer
from tests.support.fakes.device_here import DeviceHere

GLIBC = "\tlinux-vdso.so.1 (0x0000ffff9)\n\tlibc.so.6 => /lib/libc.so.6 (0x0000ffff8)\n\t/lib/ld.so.1 (0xa)\n"
MUSL = (
    "\t/lib/ld-musl-aarch64.so.1 (0xffff)\n\tlibc.musl-aarch64.so.1 => /lib/ld-musl-aarch64.so.1 (0xffff)\n"
)
BIONIC = "\tlinux-vdso.so.1 => [vdso] (0x7f)\n\tlibc.so => /apex/com.android.runtime/lib64/bionic/libc.so (0x7f1)\r\n"


class Device(DeviceHere):
    """listed: what the linker says, instead of its own."""

    def __init__(self, listed: Answer | None = None) -> None:
        super().__init__()
        self.listed = listed

    def run(self, argv: Sequence[str], **options: object) -> Answer:  # type: ignore[override]
        return (self.listed if "--list" in argv else None) or super().run(argv)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (GLIBC, ["/lib/libc.so.6", "/lib/ld.so.1"]),
        (MUSL, ["/lib/ld-musl-aarch64.so.1"] * 2),
        (BIONIC, ["/apex/com.android.runtime/lib64/bionic/libc.so"]),
        ("libx.so => not found\nno => /x (0xzz)\n" + "\x1b[2J" * 100, []),
    ],
)
def test_what_linkers_list(text: str, paths: list[str]) -> None:
    assert list(parse_listed(text)) == paths


def test_a_list_without_end_is_cut() -> None:
    assert len(list(parse_listed("a => /b (0x1)\n" * 100_000))) == 4096


def test_a_script_is_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "a script"
    script.write_text("#! /bin/sh -e\n")
    program = find_program(Device(), str(script), PulledFiles(Device(), tmp_path))
    assert program is not None and program.is_64_bit
    assert program.path == "/bin/sh" and program.machine == Device().arch


@pytest.mark.parametrize("content", ["", "#!\n", "#!not/a/path\n", "neither\n", "#!{0}/odd\n"])
def test_files_that_are_not_programs(content: str, tmp_path: Path) -> None:
    """Nor is a script that runs itself."""
    (tmp_path / "odd").write_text(content.format(tmp_path))
    assert find_program(Device(), str(tmp_path / "odd"), PulledFiles(Device(), tmp_path)) is None


def objects(device: Device, command: str, folder: Path) -> tuple[list[str], str]:
    pulled = PulledFiles(device, folder)
    program = find_program(device, command, pulled)
    assert program is not None
    paths, remark = loaded_objects(device, program, pulled)
    found = fetch_until(pulled, paths, {"malloc"}, whole=False)
    pulled.close()
    return [one.path for one in found], remark


def test_the_search_ends_at_the_file_with_malloc(tmp_path: Path) -> None:
    found, remark = objects(Device(), "sh", tmp_path)
    assert found[0] == os.path.realpath(shutil.which("sh") or "")
    assert os.path.basename(found[-1]).startswith("libc.so") and os.path.islink(found[-1]) is False
    assert remark == ""


def test_a_linker_that_lists_nothing(tmp_path: Path) -> None:
    """bionic's before Android 11 takes --list for a program."""
    program = tmp_path / "program"
    code, glibc = Path(str(shutil.which("cat"))).read_bytes(), b"/lib64/ld-linux-x86-64.so.2"
    if code.count(glibc) != 1:
        pytest.skip("cat is linked in another way here")
    program.write_bytes(code.replace(glibc, b"/system/bin/linker64".ljust(len(glibc), b"\0")))
    program.chmod(0o755)
    device = Device(Answer(1, b"", b'error: unable to open file "--list"\n'))
    pulled = PulledFiles(device, tmp_path / "kept")
    found = find_program(device, str(program), pulled)
    assert found is not None
    paths, remark = loaded_objects(device, found, pulled)
    assert paths == [str(program), "/system/lib64/libc.so"]
    assert 'does not list what it loads (error: unable to open file "--list")' in remark


def test_a_device_that_tells_nothing_at_all(tmp_path: Path) -> None:
    refusal = r"could not list the libraries of .* \(exit code 1\); use --tracer preload"
    with pytest.raises(TargetError, match=refusal):
        objects(Device(Answer(1, b"", b"")), "sh", tmp_path)


@pytest.fixture(scope="module")
def sleeping() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import zlib, time; print(1, flush=True); time.sleep(99)"],
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.read(1)
        yield process.pid
        process.kill()


def test_a_process_looks_the_same_from_afar(sleeping: int) -> None:
    near, far = LocalProcess.open(sleeping), RemoteProcess.open(LocalMachine(), sleeping)
    assert (far.pid, far.name, far.command) == (near.pid, near.name, near.command)
    assert list(far.mappings) == near.mappings()
    assert far.is_64_bit and far.uid == os.geteuid()
    assert far.executable is not None and os.path.realpath(sys.executable) == far.executable.path


def test_objects_come_in_the_linkers_order_and_say_what_they_define(sleeping: int) -> None:
    if os.geteuid():
        pytest.skip("needs root to read the process")
    agent = str(find_binary("memleakd", LocalMachine().arch))
    names = ("malloc", "mmap", "no_such_function")
    objects = RemoteProcess.open(LocalMachine(), sleeping).objects(agent, names)
    near = [one.path for one in LocalProcess.open(sleeping).loaded_objects()]
    assert [one.path for one in objects] == near
    (libc,) = (one for one in objects if one.name.startswith("libc.so"))
    assert libc.defines == {"malloc", "mmap"}
    assert next(one for one in objects if "malloc" in one.defines) == libc


def test_a_missing_process_and_one_that_has_ended() -> None:
    with pytest.raises(TargetError, match="there is no process 4194303 on this machine"):
        RemoteProcess.open(LocalMachine(), 4194303)
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TargetError, match="has ended already"):
            RemoteProcess.open(LocalMachine(), process.pid)


@pytest.mark.parametrize("noise", [b"", b"\xff" * 1000, b"Name:\tx\n", b"\0" * 70000])
def test_half_an_answer_is_an_error_of_the_device(noise: bytes) -> None:
    with pytest.raises(DeviceError, match="device x did not answer about process 7"):
        RemoteProcess.open(DeviceHere(sh=Answer(0, noise, b"")), 7)
