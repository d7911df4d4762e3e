"""The leaky app's libraries as a program of this machine, and what its report has in common with the app's.

The same sources, flags and (on Debian 12) version of GCC. Compared are the `user` sites by bytes and blocks, each by its
allocation function and its chain of the libraries' own functions. Left out are:
- sites of the runtime, and the frames of libc, libstdc++ and what started the thread: another libc, another caller of main;
- inlined functions: which ones a compiler inlines into which is each architecture's own;
- hand_over's exchange: a destructor empties it at exit, and an app does not exit.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.emulator.apps import ARM64, libraries
from tests.emulator.compiler import cross
from tests.support.workloads import run

LOCAL = replace(ARM64, name="x86_64", compiler="g++", flags=())
LIBRARIES = ("libleaky.so", "libmemleak-demo.so")
Chain = tuple[str, ...]  # innermost first


def report(tracer: str, folder: Path) -> dict[str, Any]:
    """Of the program from its start to its exit. Skips where the tracer cannot run here."""
    for library in libraries(LOCAL, stripped=False).values():
        shutil.copy(library, folder)
    program = folder / "leaky"  # its main is the library's
    link = ["-o", program, f"-L{folder}", "-lleaky", f"-Wl,-rpath-link,{folder}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*cross(LOCAL.compiler), *link], check=True)
    return run(tracer, folder, "--", program).report


def chains(found: Mapping[str, Any]) -> dict[Chain, tuple[int, int]]:
    """Bytes and blocks of each."""
    space, objects = Counter[Chain](), Counter[Chain]()
    for site in found["sites"]:
        chain = _chain(site["frames"])
        if site["kind"] == "user" and len(chain) > 1:
            space[chain] += site["inuse_space"]
            objects[chain] += site["inuse_objects"]
    return {chain: (space[chain], objects[chain]) for chain in space}


def _chain(frames: list[dict[str, Any]]) -> Chain:
    if any("hand_over" in frame["function"] for frame in frames):
        return ()
    own = (frame["function"] for frame in frames if is_own(frame) and not frame["inlined"])
    return (frames[0]["function"], *own)


def is_own(frame: Mapping[str, Any]) -> bool:
    """A frame of one of the libraries."""
    return Path(frame["module"]).name in LIBRARIES
