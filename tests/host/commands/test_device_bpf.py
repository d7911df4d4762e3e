"""Real BPF sessions through the real adb server: the device is this machine, behind an adb daemon of the tests'."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.adbd import FakeDevice
from tests.support.gcc import gcc
from tests.support.workloads import PROGRAM, need

pytestmark = [pytest.mark.usefixtures("adb_server"), pytest.mark.proof]

SIZE, OBJECTS = 1009, 23
LEAKING_C = """
#include <stdlib.h>
#include <unistd.h>
#include <poll.h>
static void *volatile kept;
__attribute__((noinline)) void leak_inner(size_t size) { kept = malloc(size); __asm__ volatile(""); }
__attribute__((noinline)) void leak_outer(size_t size) { leak_inner(size); __asm__ volatile(""); }
int main(void)
{
	struct pollfd input = { 0, POLLIN, 0 };
	char order;

	for (;;) {
		kept = malloc(17); /* shows when probes are in place */
		free(kept);
		if (poll(&input, 1, 10) != 1)
			continue;
		if (read(0, &order, 1) != 1)
			return 0;
		for (int i = 0; i < OBJECTS; i++)
			leak_outer(SIZE);
		if (write(1, "d", 1) != 1)
			return 1;
	}
}
"""


@pytest.fixture
def leaking(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program without frame pointers that leaks for each byte it is given, and says so."""
    (tmp_path / "leaking.c").write_text(LEAKING_C)
    flags = ["-O2", "-fomit-frame-pointer", f"-DSIZE={SIZE}", f"-DOBJECTS={OBJECTS}", "-Wl,--build-id"]
    gcc(*flags, "-o", tmp_path / "leaking", tmp_path / "leaking.c")
    with subprocess.Popen(
        [tmp_path / "leaking"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def _bpf() -> None:
    need("bpf")


def session(
    device: FakeDevice,
    leaking: subprocess.Popen[bytes],
    folder: Path,
    end: Callable[[subprocess.Popen[str]], None],
) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of a session in which the program leaks once, and `end` comes a while later."""
    assert leaking.stdin is not None and leaking.stdout is not None
    report = folder / "report.json"
    argv = [*PROGRAM, "-s", device.serial, "--pid", str(leaking.pid), "--json", str(report)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 30
        while "[uprobes]" not in Path(f"/proc/{leaking.pid}/maps").read_text():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        leaking.stdin.write(b"x")
        assert leaking.stdout.read(1) == b"d"
        time.sleep(5)  # snapshots are taken after 1, 2 and 4 seconds
        end(process)
        _, err = process.communicate(timeout=60)
    assert report.exists(), err
    return process.returncode, json.loads(report.read_text())


def check(found: dict[str, Any]) -> None:
    (site,) = (site for site in found["sites"] if site["inuse_space"] == SIZE * OBJECTS)
    assert (site["inuse_objects"], site["end"]) == (OBJECTS, "ROOT")
    assert [frame["function"] for frame in site["frames"][1:4]] == ["leak_inner", "leak_outer", "main"]
    assert found["totals"]["unattributed_objects"] == 0
    memory = found["memory"]
    assert memory["tracked"] == found["totals"]["inuse_space"]
    resident = {part["name"]: part["resident"] for part in memory["parts"]}
    assert resident["files"] > 0 and resident["allocator"] > SIZE * OBJECTS


def test_exact_to_the_byte(device: FakeDevice, leaking: subprocess.Popen[bytes], tmp_path: Path) -> None:
    code, found = session(device, leaking, tmp_path, lambda process: process.send_signal(signal.SIGINT))
    assert (code, found["verdict"], found["target"]["serial"]) == (0, "ok", device.serial)
    check(found)
    kept = [path for path in (tmp_path / "cache").rglob("modules/??/*") if path.is_file()]
    assert len(kept) == 2, "the program and its libc are all that a stack needs"


def test_a_pulled_cable_costs_no_stack(
    device: FakeDevice, leaking: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The stacks of the last snapshot had been unwound by then, and its files pulled."""
    code, found = session(device, leaking, tmp_path, lambda process: device.cut())
    assert (code, found["verdict"]) == (6, "incomplete")
    check(found)
