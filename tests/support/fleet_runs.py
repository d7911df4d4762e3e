"""`fleet report` as a user runs it, and what its dataset holds then."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command_line import Finished
from tests.support.program_server import run_program


@dataclass(frozen=True, slots=True)
class FleetRun(Finished):
    @property
    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self.out))

    def states(self) -> dict[str, str]:
        """By the file's name."""
        return {row["source"].rpartition("/")[2]: row["state"] for row in self.answer["recordings"]}


def command(dataset: object, *words: object) -> list[str]:
    """One worker unless `words` say otherwise: each imports all that it needs."""
    given = ("fleet", "report", "--dataset", dataset, "--format", "json", "--jobs", 1, *words)
    return [sys.executable, "-m", "memleak_android.host", *map(str, given)]


def fleet(dataset: object, *words: object) -> FleetRun:
    """Its worker is a thread where `words` choose none: a process reads all modules again, in two seconds of CPU time."""
    module = "" if {"--jobs", "--engine"} & set(words) else "tests.support.fakes.fleet_in_threads"
    done = run_program(command(dataset, *words)[3:], timeout_s=1000, module=module)
    return FleetRun(done.returncode, done.stdout, done.stderr)


def parts(dataset: Path) -> dict[str, bytes]:
    """Every file, by its path in the dataset."""
    return {
        str(path.relative_to(dataset)): path.read_bytes()
        for path in sorted(dataset.rglob("*"))
        if path.is_file()
    }
