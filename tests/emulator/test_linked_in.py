"""On arm64: a program that records itself, on glibc and on bionic; stacks by frame pointers and by CFI."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.recording.read import read_profile
from tests.emulator.phone import bionic
from tests.emulator.phone.compiler import ROOT, compiled, cross, zig
from tests.emulator.phone.machine import Machine
from tests.emulator.test_sessions import run

pytestmark = pytest.mark.emulator
TESTS = Path(__file__).resolve().parents[1]
APP = TESTS / "sessions" / "linked_in" / "app.c"
HEADER = ROOT / "device" / "preload" / "include"
WORKLOAD = TESTS / "device" / "programs" / "frame_pointer_workload.c"
REMOTE = "/data/local/tmp/linked-in"


def on_glibc() -> Path:
    shim = find_binary("libmemleak.so", "arm64")
    flags = ["-O2", "-g", "-pthread", "-I", HEADER, shim, "-Wl,-rpath,$ORIGIN"]
    return compiled("app_glibc", cross("aarch64-linux-gnu-gcc"), flags, [APP], depends=[HEADER / "memleak.h"])


def on_bionic() -> Path:
    if not bionic.is_at_hand():
        pytest.skip("bionic is not at hand (tests/emulator/README.md)")
    compiler = zig(bionic.TARGET)
    start = bionic.ANDROID / "bionic_start.c"
    flags: list[str | Path] = [*bionic.COMPILE, "-fno-omit-frame-pointer", "-I", HEADER, "-c"]
    objects = [compiled(f"{source.stem}.o", compiler, flags, [source]) for source in (APP, start)]
    linker = [
        "-pie",
        "-Wl,--dynamic-linker,/system/bin/linker64",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--build-id=sha1",
    ]
    libraries = [find_binary("libmemleak.so", "arm64"), bionic.LIBC / "libc.so", bionic.LIBC / "libdl.so"]
    return compiled("app_bionic", compiler, [*bionic.LINK, *linker, *libraries], objects)


@pytest.mark.parametrize("program", [on_glibc, on_bionic])
def test_a_program_records_itself(machine: Machine, program: Callable[[], Path], tmp_path: Path) -> None:
    built = program()
    with machine.holding(REMOTE, built, find_binary("libmemleak.so", "arm64")):
        code, out, err = machine.shell(f"cd {REMOTE} && ./{built.name} {REMOTE} every")
        assert (code, err) == (0, ""), out
        machine.adb("pull", f"{REMOTE}/app.memleak", tmp_path / "app.memleak")
    profile = read_profile(tmp_path / "app.memleak", View(), [built.parent])
    assert profile.target.arch == "arm64" and profile.totals.unattributed_objects == 0
    found = {site.frames[1].function: site for site in profile.sites}
    for function, size, count in (("leak_small", 1009, 200), ("leak_large", 40009, 30)):
        site = found[function]
        others = [
            (one.inuse_objects, one.end, [frame.function for frame in one.frames]) for one in profile.sites
        ]
        assert (site.inuse_space, site.inuse_objects) == (size * count, count), others
        assert site.frames[2].function == "main"


def agreement(machine: Machine, tracer: str, tmp_path: Path, *flags: str) -> dict[str, float]:
    program = compiled("frames", cross("aarch64-linux-gnu-gcc"), ["-O2", "-pthread", *flags], [WORKLOAD])
    words = ("--tracer", tracer, "--unwind", "both", "--json", tmp_path / "report.json")
    with machine.holding(REMOTE, program):
        done = run(machine, *words, "--", f"{REMOTE}/frames")
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "report.json").read_text())["unwinding"]["fp_agreement"]


@pytest.mark.parametrize(
    ("tracer", "kept", "low", "high"),
    [("preload", "-fno-", 0.95, 1.0), ("bpf", "-fno-", 0.95, 1.0), ("preload", "-f", 0.0, 0.1)],
)
def test_frame_pointers_and_cfi_agree_where_they_are_kept(
    machine: Machine, tracer: str, kept: str, low: float, high: float, tmp_path: Path
) -> None:
    flags = (f"{kept}omit-frame-pointer", "-fno-optimize-sibling-calls")
    agreed = agreement(machine, tracer, tmp_path, *flags)
    assert agreed["stacks"] >= 20
    assert low <= agreed["share"] <= high and (low == 0 or agreed["wrong"] == 0)
