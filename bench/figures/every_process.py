"""What `--all` costs programs that know nothing of it: those that fork much, and one that allocates much.

Beside nothing, and beside the least that counts calls of malloc and free in every process: three probes of bpftrace. memleak of
bcc has no such mode.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.peers import Way, running
from bench.programs import compile_c
from bench.spread import Spread, differences, number, ratios, render, spread

FILES = 4  # compiled one after the other: a compiler is four processes
ALLOCATIONS, WORK = 300_000, 200  # of bench/workloads/paced.c
_SOURCE = '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint main(void) { puts(getenv("HOME")); return 0; }\n'


@dataclass(slots=True)
class Load:
    """A program, and the CPU seconds that it and all its children took: by way, one value a round."""

    name: str
    argv: tuple[str, ...]
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def run(self, way: str) -> None:
        process = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{self.name} failed with status {process.returncode}")
        self.cpu_s.setdefault(way, []).append(used.ru_utime + used.ru_stime)


def loads(folder: Path) -> list[Load]:
    found = [Load("allocates", (str(compile_c("paced", folder)), str(ALLOCATIONS), str(WORK), "64"))]
    compiler = shutil.which("gcc")
    if compiler is not None:
        source = folder / "one_of_many.c"
        source.write_text(_SOURCE)
        once = f"{compiler} -O1 -o {folder / 'one_of_many'} {source}"
        found.append(Load("compiles", ("sh", "-c", f"for i in $(seq {FILES}); do {once} || exit 1; done")))
    return found


def c_library() -> str:
    """That of this process, which is the loads' too."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = next((line.split()[-1] for line in maps if "/libc.so.6" in line), "")
    if not found:
        raise SystemExit("no libc.so.6 in this process: the floor has nothing to probe")
    return found


def ways(folder: Path) -> list[Way]:
    ours = (
        sys.executable,
        "-m",
        "memleak_android.host",
        "--all",
        "-o",
        str(folder / "every-process"),
        "--force",
    )
    found = [Way("--all", ours, b"allocations")]
    if shutil.which("bpftrace") is None:
        return found
    libc = c_library()
    counts = " ".join(
        f"{probe}:{libc}:{name} {{ @{number} = count(); }}"
        for number, (probe, name) in zip(
            "abc", (("uprobe", "malloc"), ("uretprobe", "malloc"), ("uprobe", "free")), strict=True
        )
    )
    return [Way("bpftrace, count()", ("bpftrace", "-e", counts), b"Attach"), *found]


def measure(rounds: int, folder: Path) -> list[Load]:
    """In each round each way once, all loads one after the other, and nothing before it."""
    found = loads(folder)
    for _ in range(rounds):
        for load in found:
            load.run("")
        for way in ways(folder):
            with running(way, folder, machine.foreign_probes):
                for load in found:
                    load.run(way.name)
    return found


def as_text(found: Sequence[Load]) -> str:
    floor = "bpftrace, count()"
    rows = []
    for load in found:
        for way, cpu_s in load.cpu_s.items():
            added = differences(cpu_s, load.cpu_s[""])
            of_floor = (
                ratios(added, differences(load.cpu_s[floor], load.cpu_s[""])) if floor in load.cpu_s else []
            )
            rows.append(
                (
                    load.name,
                    way or "nothing",
                    number(Spread.of(cpu_s).median, 2),
                    spread(ratios(cpu_s, load.cpu_s[""]), 2) if way else "",
                    spread(of_floor, 2) if way and of_floor else "",
                )
            )
    text = render(("", "beside", "CPU s", "of nothing", "added / floor"), rows)
    return text if any(floor in load.cpu_s for load in found) else f"{text}\n  floor not run: no bpftrace"


def as_json(found: Sequence[Load]) -> dict[str, Any]:
    return {
        "unit": "seconds of CPU of a load and all its children, one value a round",
        "loads": [asdict(load) for load in found],
    }
