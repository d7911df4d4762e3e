"""A command on a device: its streams are ours, whichever tracer measures it; the device is this machine behind adb."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from tests.support.attaching import until
from tests.support.fakes.adbd import FakeDevice
from tests.support.program_server import run_program, start_program
from tests.support.workloads import need

pytestmark = pytest.mark.usefixtures("adb_server")

SPEAKING = 'read -r line; echo "heard $line"; echo complaint >&2; cat; exit 3'


def measured(
    device: FakeDevice, folder: Path, *words: str, stdin: bytes = b"", options: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess[bytes], dict[str, Any]]:
    report = folder / "report.json"
    argv = ["-s", device.serial, *options, "--json", report, "--", *words]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start_program(argv, environment, **streams) as process:
        out, err = process.communicate(stdin, timeout=60)
    done = subprocess.CompletedProcess(argv, process.returncode, out, err)
    return done, json.loads(report.read_bytes()) if report.exists() else {}


@pytest.fixture
def shell(device: FakeDevice) -> FakeDevice:
    """Without root."""
    device.add_program("id", "echo 2000")
    return device


def test_what_it_prints_and_reads(shell: FakeDevice, tmp_path: Path) -> None:
    shell.faults.late = "memleakd lend"
    big = os.urandom(300_000)  # more than any buffer on the way
    done, found = measured(shell, tmp_path, "sh", "-c", SPEAKING, stdin=b"a word\n" + big)
    assert done.returncode == 3, done.stderr
    assert done.stdout == b"heard a word\n" + big, "all of it, and nothing else"
    assert b"measured: every allocation (preload)" in done.stderr
    assert b"\ncomplaint\n" in b"\n" + done.stderr
    assert b"measuring by preload: no root\n" in done.stderr
    assert b"sh exited with status 3\n" in done.stderr
    assert found["target"]["tracer"] == "preload" and found["target"]["serial"] == shell.serial
    assert found["totals"]["alloc_objects"] > 0
    assert os.listdir(shell.temporary) == []


@pytest.mark.proof
def test_writes_after_the_measurement_fail(shell: FakeDevice, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    loop = f"trap '' PIPE; while echo on 2>{mark}; do sleep 0.05; done; echo broken >{mark}"
    done, _ = measured(shell, tmp_path, "sh", "-c", loop, options=("--duration", "300ms"))
    assert done.returncode == 0 and done.stdout.startswith(b"on\non\n")
    assert b"sh goes on running" in done.stderr
    assert until(lambda: mark.read_text() == "broken\n")


def test_a_command_that_is_not_there(shell: FakeDevice, tmp_path: Path) -> None:
    done, _ = measured(shell, tmp_path, "/no/such program")
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"could not start /no/such program: No such file or directory" in done.stderr


@pytest.mark.proof
@pytest.mark.parametrize("command", [("python3", "-c"), ("env", "python3", "-c")])
def test_by_bpf(device: FakeDevice, tmp_path: Path, command: tuple[str, ...]) -> None:
    """From the first allocation: the linker says which malloc it will be."""
    need("bpf")
    program = "import ctypes; libc = ctypes.CDLL(None); [libc.malloc(1009) for _ in range(23)]; print('done')"
    done, found = measured(device, tmp_path, *command, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"done\n")
    assert f"measuring by bpf: {command[0]} runs as root".encode() in done.stderr
    assert found["target"]["tracer"] == "bpf"
    leaked = [site for site in found["sites"] if site["inuse_space"] == 23 * 1009]
    assert len(leaked) == 1 and leaked[0]["inuse_objects"] == 23


@pytest.mark.proof
@pytest.mark.parametrize("is_open", [True, False])
def test_a_program_that_was_deleted(
    shell: FakeDevice, tmp_path: Path, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root it can only be read out of memory; where that is closed, too, the report names it."""
    program, agent = shell.folder / "vanishing", tmp_path / "memleakd"
    shutil.copy(str(shutil.which("sleep")), program)
    refusal = "" if is_open else "[ $1 != image ] || { echo closed >&2; exit 4; }\n"
    agent.write_text(f'#!/bin/sh\n{refusal}exec {find_binary("memleakd", local_arch())} "$@"\n')
    monkeypatch.setenv("MEMLEAKD", str(agent))
    script = f"{program} 3 & until grep -q {program} /proc/$!/maps; do sleep 0.05; done; rm {program}; wait"
    done, found = measured(shell, tmp_path, "sh", "-c", script, options=("--follow", "--duration", "1500ms"))
    assert done.returncode == 0, done.stderr
    known = {module["build_id"] for module in found["symbols"] if module["module"].startswith(str(program))}
    notes = [note for note in found["notes"] if note.startswith(str(program))]
    if is_open:
        assert len(known) == 1 and "" not in known and notes == []
    else:
        (note,) = notes
        assert "it cannot be read there without root or a debuggable app, nor the memory of process" in note
        assert note.endswith("(closed); stacks end there, and its functions have no names")


def test_a_recording_that_was_cut_finds_its_modules(shell: FakeDevice, tmp_path: Path) -> None:
    """This program is killed; the files of the device are out of reach by then."""
    program, recording = shell.folder / "program", tmp_path / "cut.memleak"
    shutil.copy(str(shutil.which("sleep")), program)
    words = ["-s", shell.serial, "-o", str(recording), "--", str(program), "20"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with start_program(["record", *words], env=environment, stderr=subprocess.PIPE) as process:
        assert until(lambda: recording.exists() and b'"build_id"' in recording.read_bytes())
        process.kill()
    program.unlink()
    done = run_program(["report", recording, "--format", "json"], env=environment)
    assert done.returncode == 6, done.stderr
    found = json.loads(done.stdout)
    assert any("did not end in order" in note for note in found["notes"])
    modules = {frame["module"] for site in found["sites"] for frame in site["frames"]}
    assert str(program) in modules
    assert found["unwinding"]["complete"] == found["unwinding"]["stacks"] > 0
