"""Runs of `snoop` on small programs, read back from its JSON lines."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.program_server import run_program
from tests.support.workloads import built, need

SOURCES = Path(__file__).resolve().parents[1] / "sessions" / "snoop" / "programs"


def snooped_program(name: str) -> Path:
    """The workload of this file name, compiled once."""
    return built(SOURCES / name)


@dataclass(frozen=True, slots=True)
class SnoopRun:
    """events: entries, exits and unpaired ones, in order. statistics: by function. lost: by cause."""

    code: int
    program_output: str
    err: str
    events: list[dict[str, Any]]
    statistics: dict[str, dict[str, Any]]
    lost: dict[str, int]

    def of(self, function: str, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["function"] == function and one["type"] == kind]

    def numbers(self, function: str) -> tuple[int, int, int]:
        """Calls, returns and unpaired ones."""
        counted = self.statistics[function]
        return counted["calls"], counted["returns"], counted["unpaired"]


def snoop(*options: object, command: Sequence[object] = (), codes: Sequence[int] = (0,)) -> SnoopRun:
    need("bpf")
    with tempfile.TemporaryDirectory() as folder:
        event_file = Path(folder) / "events.jsonl"
        words = ["snoop", "--json", event_file, *options, *(["--", *command] if command else [])]
        done = run_program(list(map(str, words)), timeout_s=120)
        assert done.returncode in codes, f"exit code {done.returncode}: {done.stderr}\n{done.stdout}"
        lines = (
            [json.loads(line) for line in event_file.read_text().splitlines()] if event_file.exists() else []
        )
    statistics = {one["function"]: one for one in lines if one["type"] == "statistics"}
    end = next((one for one in lines if one["type"] == "end"), {"lost": {}})
    events = [one for one in lines if one["type"] in ("entry", "exit", "unpaired")]
    return SnoopRun(done.returncode, done.stdout, done.stderr, events, statistics, end["lost"])
