"""Measured programs: small C programs, real programs with generated input, copies of our own binaries."""

import json
import random
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.agent import Installation
from memleak_android.host.machine.binaries import find_binary, local_arch

_SOURCES = Path(__file__).parent / "workloads"


@dataclass(frozen=True, slots=True)
class Program:
    """A command; environment: what is added to ours. missing: why it cannot be run here, "" when it can."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""


def install(folder: Path) -> Installation:
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for name in ("memleakd", "libmemleak.so"):
        copies.append(folder / name)
        shutil.copy(find_binary(name, local_arch()), copies[-1])
    return Installation(copies[0], copies[1], folder / "recording.memleak")


def compile_c(name: str, folder: Path) -> Path:
    """Optimised and without frame pointers, as distributions build."""
    program = folder / name
    flags = ["-O2", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", program, _SOURCES / f"{name}.c"], check=True)
    return program


def paced(folder: Path, name: str, allocations: int, work: int, stacks: int = 64) -> Program:
    """Allocations at an even pace; see bench/workloads/paced.c."""
    return Program(name, (str(folder / "paced"), str(allocations), str(work), str(stacks)))


def real_programs(folder: Path, json_bytes: int, rows: int) -> list[Program]:
    """Distribution binaries on generated input: json_bytes for jq and python3, rows for sqlite3."""
    document = _json_document(folder, json_bytes)
    script = _sql_script(folder, rows)
    python = f"import json; d = json.load(open({str(document)!r})); print(len(json.dumps(d, sort_keys=True)))"
    return [
        _if_here("jq", "jq", "[.[] | select(.score > 0.5) | {id, tags}] | length", str(document)),
        _if_here("sqlite3", "sqlite3", ":memory:", f".read {script}"),
        _if_here("python3", "/usr/bin/python3", "-c", python, PYTHONMALLOC="malloc"),
    ]


def _if_here(name: str, command: str, *arguments: str, **environment: str) -> Program:
    path = shutil.which(command)
    return Program(name, (path or command, *arguments), environment, "" if path else f"no {command} here")


def _json_document(folder: Path, size: int) -> Path:
    """An array of small objects, the same on every machine."""
    path = folder / f"data-{size}.json"
    if not path.exists():
        chosen = random.Random(1)
        words = ["".join(chosen.choices("abcdefghijklmnop", k=chosen.randint(3, 12))) for _ in range(500)]
        items: list[str] = []
        left = size
        while left > 0:
            tags = chosen.sample(words, 5)
            item = {"id": len(items), "name": chosen.choice(words), "score": chosen.random(), "tags": tags}
            items.append(json.dumps(item))
            left -= len(items[-1]) + 2
        path.write_text("[" + ",\n".join(items) + "]\n")
    return path


def _sql_script(folder: Path, rows: int) -> Path:
    path = folder / f"script-{rows}.sql"
    path.write_text(
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);\n"
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})\n"
        "INSERT INTO t SELECT i, printf('%08x', i * 2654435761 % 4294967296), i * 0.5 FROM n;\n"
        "CREATE INDEX by_b ON t(b);\n"
        "SELECT count(*), max(length(s)) FROM (SELECT group_concat(b) AS s FROM t GROUP BY a % 1000 ORDER BY b);\n"
    )
    return path
