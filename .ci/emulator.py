"""Runs the tests over adb that every change gets, and one of five parts of the others, by date: .ci/emulator.py.

All of them take eleven minutes on two processors, which a change would wait for; `make test-emulator` runs all.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("sessions", "pairs")
TURNS = (  # each with at most two machines of its own
    ("failures", "snoop", "odd_programs"),
    ("attach", "whole_stacks", "linked_in"),
    ("reachability_apps", "kernel_over_adb"),
    ("startup_agents", "stock_phone", "inline"),
    (),  # what no other names
)


def files_of(turn: int) -> list[Path]:
    names = {path.stem.removeprefix("test_"): path for path in (ROOT / "tests/emulator").glob("test_*.py")}
    named = {name for names in (ALWAYS, *TURNS) for name in names}
    chosen = [*ALWAYS, *(TURNS[turn] or sorted(names.keys() - named))]
    return [names[name] for name in chosen]


def main() -> int:
    turn = datetime.date.today().toordinal() % len(TURNS)
    files = [str(path.relative_to(ROOT)) for path in files_of(turn)]
    print(f"part {turn + 1} of {len(TURNS)}: {' '.join(files)}", flush=True)
    chosen = ["-m", "emulator and not proof", *files]
    workers = ["-n", "auto", "--maxprocesses=3", "--dist", "loadfile", "--max-worker-restart=0"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *chosen, *workers], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
