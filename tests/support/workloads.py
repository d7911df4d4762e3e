"""Small C programs compiled as distributions compile (optimised, no frame pointers), and runs of our program on them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine.local.capabilities import probe_local
from tests.support.program_server import run_program

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "support" / "programs"
BUILT = ROOT / "build" / "workloads"
FLAGS = ("-std=gnu11", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-g", "-pthread")
PROGRAM = [sys.executable, "-m", "memleak_android.host"]
TRACERS = ("bpf", "preload")


def build(name: str, folder: Path, *extra: str, output: str = "", compiler: str = "gcc") -> Path:
    """The workload `name`.c as a program (or what `extra` flags make of it) in `folder`."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    target = folder / (output or name)
    argv: list[str | Path] = [compiler, *FLAGS, "-o", target, SOURCES / f"{name}.c", *extra]
    subprocess.run(argv, check=True, capture_output=True, text=True)
    return target


@functools.cache
def built(name: str, *extra: str) -> Path:
    """The workload `name`.c, compiled once; not for programs whose path matters."""
    text = (SOURCES / f"{name}.c").read_bytes() + repr((FLAGS, extra)).encode()
    BUILT.mkdir(parents=True, exist_ok=True)
    target = BUILT / f"{name}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not target.exists():
        own = build(name, BUILT, *extra, output=f"{target.name}.{os.getpid()}")
        own.rename(target)
    return target


@functools.cache
def bpf_refusal() -> str:
    """Why the BPF tracer cannot run here, "" where it can."""
    return probe_local().bpf_refusal or ""


def need(tracer: str) -> None:
    """Skips, with the reason, where the tracer cannot run."""
    if tracer == "bpf" and bpf_refusal():
        pytest.skip(f"no BPF here: {bpf_refusal()}")


both_tracers = pytest.mark.parametrize("tracer", TRACERS)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run of our program. report: report.json, {} where none was written."""

    code: int
    out: str
    err: str
    report: dict[str, Any] = field(repr=False)

    @property
    def totals(self) -> dict[str, Any]:
        totals: dict[str, Any] = self.report["totals"]
        return totals

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


def run(
    tracer: str,
    folder: Path,
    *target: str | Path,
    options: Sequence[str | Path] = (),
    environment: Mapping[str, str] | None = None,
    codes: Sequence[int] = (0,),
    timeout_s: float = 280,
) -> Run:
    """`memleak-android --tracer TRACER --json … OPTIONS TARGET`, run in `folder`; fails on another exit code."""
    need(tracer)
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.json"
        words = ["--tracer", tracer, "--json", report, *options, *target]
        done = run_program(words, folder, environment, timeout_s)
        assert done.returncode in codes, f"exit code {done.returncode}: {done.stderr}\n{done.stdout}"
        found = json.loads(report.read_text()) if report.exists() else {}
    return Run(done.returncode, done.stdout, done.stderr, found)
