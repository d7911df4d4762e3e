"""Our own sessions of a case: by the shim from its start, and attached to it while it runs, by hooks and by BPF."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.programs import Program
from bench.real_leaks.install import Missing
from bench.real_leaks.ranks import rank_on_screen

MEMLEAK = (sys.executable, "-m", "memleak_android.host")
ROUTES = {
    "shim": ("--tracer", "preload"),
    "attach": ("--tracer", "plt"),
    "bpf": ("--tracer", "bpf"),
}
_PATIENCE_S = 120.0
_INCOMPLETE = 6  # the exit status of a session that says what it missed


@dataclass(frozen=True, slots=True)
class Found:
    """Our answer. rank: of the place with the function, from 1; 0 = nowhere. bytes_per_s: of the whole program.

    steps_per_s: of the loop, by its own count. verdict: our answer. screen: what the user sees.
    """

    rank: int
    bytes_per_s: float
    steps_per_s: float
    verdict: str
    is_complete: bool
    screen: str


def rss_a_step(target: Program, seconds: float) -> float:
    """Bytes, of the loop without any tool."""
    folder = Path(tempfile.mkdtemp())
    words = _environment(target, seconds, folder)
    done = subprocess.run(
        target.argv, env=words, check=False, capture_output=True, text=True, timeout=_PATIENCE_S + seconds
    )
    if done.returncode:
        raise Missing(f"{target.name}: {done.stderr.strip()[-200:]}")
    return float(_truth(folder)["rss_a_step"])


def _truth(folder: Path) -> dict[str, float]:
    truth: dict[str, float] = json.loads((folder / "truth.json").read_text())
    return truth


def run(route: str, target: Program, functions: Collection[str], seconds: float, folder: Path) -> Found:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    output = ["-o", str(folder / "result")]
    if route == "shim":
        screen = _session(
            [*ROUTES[route], *output, "--", *target.argv], _environment(target, seconds, folder)
        )
    else:
        screen = _attached(route, target, seconds, folder, output)
    answer: dict[str, Any] = json.loads((folder / "result/report.json").read_text())
    return Found(
        rank_on_screen(screen, functions),
        answer["answer"].get("growth_bytes_per_s") or 0.0,
        _truth(folder)["steps_per_s"],
        answer["answer"]["state"],
        answer["measurement"] == "complete",
        screen,
    )


def _environment(target: Program, seconds: float, folder: Path) -> dict[str, str]:
    told = {"SECONDS": str(seconds), "TRUTH": str(folder / "truth.json"), "READY": str(folder / "ready")}
    return {**os.environ, **target.environment, **told}


def _session(words: list[str], environment: Mapping[str, str]) -> str:
    """Returns its output: the first screen is on stderr, because the program has stdout."""
    done = subprocess.run(
        [*MEMLEAK, *words], env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    if done.returncode not in (0, _INCOMPLETE):
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {done.stderr[-500:]}")
    return done.stdout + done.stderr


def _attached(route: str, target: Program, seconds: float, folder: Path, output: list[str]) -> str:
    """The session begins when the steps do. They end after it, however long attaching took."""
    until = folder / "until"
    environment = {**_environment(target, seconds, folder), "UNTIL": str(until)}
    process = subprocess.Popen(target.argv, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (folder / "ready").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{target.name} did not begin")
            time.sleep(0.05)
        words = [*ROUTES[route], "--pid", str(process.pid), "--duration", str(seconds), *output]
        screen = _session(words, os.environ)
        until.touch()
        process.wait(_PATIENCE_S)
        return screen
    finally:
        process.kill()
        process.wait()
