"""Small C programs compiled as distributions compile (optimised, no frame pointers), and runs of our program on them."""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine import capabilities
from memleak_android.host.machine.local.machine import probe_local
from tests.support.program_server import run_program

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "support" / "programs"
PROGRAMS = ROOT / "tests" / "device" / "programs"
LIBC = SOURCES / "libc.h"
BUILT = ROOT / "build" / "workloads"
FLAGS = ("-std=gnu11", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-g", "-pthread")
PROGRAM = [sys.executable, "-m", "memleak_android.host"]
TRACERS = ("bpf", "preload")


def source_of(name: str | Path) -> tuple[Path, list[str]]:
    """The file of a workload, named by its stem in programs/ or by its path, and what to define for its compilation.

    A program that has no file of its own is a function of cases.c.
    """
    path = SOURCES / name
    found = path if path.suffix else path.with_name(f"{path.name}.c")
    return (found, []) if found.exists() else (SOURCES / "cases.c", [f"-D{name}=main"])


def build(name: str | Path, folder: Path, *extra: str, output: str = "", compiler: str = "") -> Path:
    """The workload as a program (or what `extra` flags make of it) in `folder`."""
    source, define = source_of(name)
    compiler = compiler or {".c": "gcc", ".cc": "g++"}[source.suffix]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    target = folder / (output or Path(name).stem)
    flags = FLAGS if source.suffix == ".c" else FLAGS[1:]
    argv: list[str | Path] = [compiler, *flags, *define, "-o", target, source, *extra]
    subprocess.run(argv, check=True, capture_output=True, text=True)
    return target


@functools.cache
def built(name: str | Path, *extra: str) -> Path:
    """The workload, compiled once; not for programs whose path matters."""
    source = source_of(name)[0]
    text = b"".join(path.read_bytes() for path in (source, LIBC, *sorted(source.parent.glob("*.h"))))
    text += repr((str(name), FLAGS, extra)).encode()
    target = BUILT / hashlib.sha256(text).hexdigest()[:12] / Path(name).stem
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        build(name, target.parent, *extra, output=f"{target.name}.{os.getpid()}").rename(target)
    return target


def without_calls() -> Path:
    """Runs a command without some system calls."""
    return built(ROOT / "tests" / "sessions" / "bionic" / "without_calls")


def plugin(folder: Path, which: str, size: int) -> Path:
    """A library lib{which}.so whose leak() allocates so many bytes in leak_{which}()."""
    words = ("-shared", "-fPIC", f"-DLEAK=leak_{which}", f"-DLEAK_BYTES={size}")
    return build("plugin", folder, *words, output=f"lib{which}.so")


@functools.cache
def bpf_refusal() -> str:
    """Why the BPF tracer cannot run here, "" where it can."""
    return capabilities.bpf_refusal(probe_local())


def need(tracer: str) -> None:
    """Skips, with the reason, where the tracer cannot run."""
    if tracer == "bpf" and bpf_refusal():
        pytest.skip(f"no BPF here: {bpf_refusal()}")


both_tracers = pytest.mark.parametrize("tracer", TRACERS)
# BPF follows children by probes in every process.
both_following = pytest.mark.parametrize(
    "tracer", [pytest.param("bpf", marks=pytest.mark.changes_all_code), "preload"]
)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run of our program. report: report.json, {} where none was written."""

    code: int
    out: str
    err: str
    report: dict[str, Any] = field(repr=False)

    @property
    def totals(self) -> dict[str, Any]:
        return self.report["totals"]

    def sites(self, kind: str = "user") -> list[dict[str, Any]]:
        return [site for site in self.report["sites"] if site["kind"] == kind]

    def amounts(self, kind: str = "user") -> tuple[int, int]:
        """Bytes and blocks still held by the sites of this kind."""
        sites = self.sites(kind)
        return sum(site["inuse_space"] for site in sites), sum(site["inuse_objects"] for site in sites)

    @property
    def errors(self) -> list[str]:
        prefix = "memleak-android: error: "
        return [line.removeprefix(prefix) for line in self.err.splitlines() if line.startswith(prefix)]


def functions(site: Mapping[str, Any]) -> list[str]:
    return [frame["function"] for frame in site["frames"]]


ONE_REQUEST = "printf r >in; head -c 1 out >/dev/null"  # a shell command in the folder of serving()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """FIFOs for a program that answers each byte of the first by one into the second, and ends at `q`, which is sent in the end."""
    fifos = "in", "out"
    for name in fifos:
        os.mkfifo(folder / name)
    try:
        yield fifos
    finally:
        requests = os.open(folder / "in", os.O_RDWR | os.O_NONBLOCK)
        os.write(requests, b"q")
        os.close(requests)


def run(
    tracer: str,
    folder: Path,
    *target: str | Path,
    options: Sequence[str | Path] = (),
    environment: Mapping[str, str] | None = None,
    codes: Sequence[int] = (0,),
    timeout_s: float = 280,
) -> Run:
    """`memleak-android --tracer TRACER --json … OPTIONS TARGET`, run in `folder`; fails on another exit code of ours."""
    need(tracer)
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.json"
        words = ["--tracer", tracer, "--exit-status", "ours", "--json", report, *options, *target]
        done = run_program(words, folder, environment, timeout_s)
        assert done.returncode in codes, f"exit code {done.returncode}: {done.stderr}\n{done.stdout}"
        found = json.loads(report.read_text()) if report.exists() else {}
    return Run(done.returncode, done.stdout, done.stderr, found)
