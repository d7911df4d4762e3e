"""Valgrind as the judge of totals and stacks: what a program still holds at its exit, by whom."""

import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WORDS = [
    "--leak-check=full",
    "--show-leak-kinds=all",
    "--leak-resolution=high",
    "--num-callers=200",
    "--show-below-main=yes",
    "--read-inline-info=no",
    "--run-libc-freeres=no",
    "--run-cxx-freeres=no",
    "--max-stackframe=8000000",
    "--xml=yes",
]


@dataclass(frozen=True, slots=True)
class Frame:
    """ip: as valgrind writes it, that is one before the return address; function "" = no name."""

    ip: int
    object: str
    function: str


@dataclass(frozen=True, slots=True)
class Record:
    """Blocks that one stack still holds; frames innermost first, without valgrind's own."""

    bytes: int
    blocks: int
    frames: tuple[Frame, ...]


def equal_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """`environment` with the strings that valgrind adds for its client, as the client sees them.

    folder: where the client runs. Programs keep copies of their environment on the heap. The preloaded objects do
    nothing outside valgrind.
    """
    argv = [_valgrind(), "-q", "/usr/bin/env", "-0"]
    run = subprocess.run(argv, env=dict(environment), cwd=folder, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in run.stdout.split("\0") if line)


def in_use_at_exit(
    argv: Sequence[str | Path], environment: Mapping[str, str], folder: Path, *more: str
) -> list[Record]:
    """Every block that the program's last process holds when it ends. The program must succeed. more: options."""
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryFile() as out:
        output = Path(temporary) / "valgrind.xml"
        words = [_valgrind(), *WORDS, *more, f"--xml-file={output}", *map(str, argv)]
        how: dict[str, Any] = {"env": dict(environment), "cwd": folder, "stdin": subprocess.DEVNULL}
        how |= {"stdout": out, "stderr": subprocess.PIPE}  # as in our runs: git buffers a pipe only
        run = subprocess.run(words, **how, timeout=600, check=False)
        assert run.returncode == 0, run.stderr
        return [_record(error) for error in ET.parse(output).iter("error") if _is_leak(error)]


def totals(records: Sequence[Record]) -> tuple[int, int]:
    return sum(record.bytes for record in records), sum(record.blocks for record in records)


def bases(records: Sequence[Record], vaddrs: Mapping[str, set[int]]) -> dict[str, int]:
    """Valgrind's load address of each object, by majority of our frames: object → address of its vaddr 0.

    vaddrs: object → ours. A base is a multiple of the page size, so that chance does not find one.
    """
    found: dict[str, Counter[int]] = {}
    for frame in {frame for record in records for frame in record.frames}:
        differences = (frame.ip + 1 - vaddr for vaddr in vaddrs.get(frame.object, ()))
        found.setdefault(frame.object, Counter()).update(base for base in differences if base % 4096 == 0)
    return {name: votes.most_common(1)[0][0] for name, votes in found.items() if votes}


def _valgrind() -> str:
    path = shutil.which("valgrind")
    if path is None:
        pytest.skip("valgrind is not installed")
    return path


def _is_leak(error: ET.Element) -> bool:
    return error.find("xwhat/leakedbytes") is not None


def _record(error: ET.Element) -> Record:
    frames = [
        Frame(int(frame.findtext("ip", "0"), 16), frame.findtext("obj", ""), frame.findtext("fn", ""))
        for frame in error.iterfind("stack/frame")
        if not Path(frame.findtext("obj", "")).name.startswith("vgpreload_")  # its malloc, setenv, putenv
    ]
    leaked, blocks = (int(error.findtext(f"xwhat/leaked{what}", "0")) for what in ("bytes", "blocks"))
    return Record(leaked, blocks, tuple(frames))
