"""The same loops by heaptrack, memray and valgrind: where the function stands among what they call leaked, by bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from xml.etree import ElementTree

from bench.programs import Program
from bench.real_leaks.ranks import rank_of_stacks

_ENTRY = re.compile(r"^([\d.]+)([BKMGT])B? leaked over")
_UNITS = {"B": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
Stack = tuple[int, Collection[str]]


def heaptrack(target: Program, folder: Path) -> Iterator[Stack]:
    """Python's own allocator is switched off for it: it would see arenas alone."""
    output = folder / "heaptrack"
    _run(target, ["heaptrack", "-o", str(output), *target.argv], PYTHONMALLOC="malloc")
    data = next(folder.glob("heaptrack*.zst"), None) or next(folder.glob("heaptrack*.gz"))
    words = [
        "heaptrack_print",
        "-f",
        str(data),
        "-l",
        "1",
        "-p",
        "0",
        "-a",
        "0",
        "-T",
        "0",
        "-n",
        "50",
        "-s",
        "50",
    ]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, errors="replace").stdout
    leaked, names = 0, list[str]()
    for line in printed[printed.find("MEMORY LEAKS") :].splitlines():
        if entry := _ENTRY.match(line):
            if names:
                yield leaked, names
            leaked, names = round(float(entry[1]) * _UNITS[entry[2]]), []
        else:
            names.append(line.strip())
    yield leaked, names


def memray(target: Program, folder: Path) -> Iterator[Stack]:
    """With native frames and Python's own allocators."""
    output, python = folder / "memray.bin", target.argv[0]
    words = [python, "-m", "memray", "run", "-q", "--native", "--trace-python-allocators", "-o", str(output)]
    _run(
        target,
        [*words, *target.argv[1:]],
        PYTHONPATH=f"{target.environment['PYTHONPATH']}:{_memray_folder()}",
    )
    from memray import FileReader

    with FileReader(output) as reader:
        for record in reader.get_leaked_allocation_records(merge_threads=True):
            yield record.size, {part for frame in record.hybrid_stack_trace() for part in frame[:2]}


def _memray_folder() -> str:
    import memray as installed

    return str(Path(installed.__file__).parents[1])


def valgrind(target: Program, folder: Path) -> Iterator[Stack]:
    output = folder / "valgrind.xml"
    words = ["valgrind", "--leak-check=full", "--show-leak-kinds=all", "--num-callers=40", "--xml=yes"]
    _run(target, [*words, f"--xml-file={output}", *target.argv], PYTHONMALLOC="malloc")
    for error in ElementTree.parse(output).iter("error"):
        if leaked := error.findtext("xwhat/leakedbytes"):
            tags = ("fn", "obj")  # a stripped library is named by its file
            yield int(leaked), [frame.findtext(tag, "") for frame in error.iter("frame") for tag in tags]


PEERS: dict[str, Callable[[Program, Path], Iterator[Stack]]] = {
    "heaptrack": heaptrack,
    "memray": memray,
    "valgrind": valgrind,
}


def missing(peer: str, target: Program) -> str:
    """Why a peer cannot be run on a program, "" when it can."""
    if peer == "memray":
        if target.argv[0] != sys.executable:
            return "not this Python"
        return "" if _can_import(peer) else "not installed (pip install memray)"
    return "" if shutil.which(peer) else "not installed"


def _can_import(name: str) -> bool:
    return not subprocess.run(
        [sys.executable, "-c", f"import {name}"], capture_output=True, check=False
    ).returncode


def rank(peer: str, target: Program, functions: Collection[str], seconds: float, folder: Path) -> int:
    shutil.rmtree(folder, ignore_errors=True)  # an earlier run: memray overwrites no file
    folder.mkdir(parents=True)
    told = Program(target.name, target.argv, {**target.environment, "SECONDS": str(seconds)})
    return rank_of_stacks(PEERS[peer](told, folder), functions)


def _run(target: Program, argv: list[str], **environment: str) -> None:
    subprocess.run(
        argv,
        check=True,
        env={**os.environ, **target.environment, **environment},
        capture_output=True,
        timeout=900,
    )
