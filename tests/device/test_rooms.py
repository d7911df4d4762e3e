"""The floors of the C rooms: which room may include which, and no circle between files."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

DEVICE = Path(__file__).resolve().parents[2] / "device"

# From the ground up. A room may include itself, device/*.h, and the rooms named, which lie above it in this table.
ROOMS = {
    ".": "",
    "cfi": "",
    "bpf": "",
    "bpf/kernel": "bpf",
    "bpf/snoop": "bpf",
    "preload/freestanding": "",
    "preload/segment": "preload/freestanding",
    "preload/stacks": "cfi preload/freestanding preload/segment",
    "preload/recorder": "preload/freestanding preload/segment preload/stacks",
    "preload/entries": "preload/freestanding preload/recorder preload/segment preload/stacks",
    "preload/hooks": "preload/entries preload/freestanding preload/recorder preload/segment",
    "preload": "preload/entries preload/freestanding preload/hooks preload/recorder preload/segment preload/stacks",
    "preload/include": "",
    "preload/linked": "preload preload/entries preload/freestanding preload/include preload/recorder preload/segment "
    "preload/stacks",
    "agent/protocol": "",
    "agent/process": "agent/protocol cfi",
    "agent/evidence": "agent/protocol",
    "agent/ptrace": "agent/process agent/protocol",
    "agent/probes": "agent/process agent/protocol agent/ptrace cfi",
    "agent/scan": "agent/process agent/protocol agent/ptrace",
    "agent/session": "agent/evidence agent/process agent/protocol agent/ptrace",
    "agent/inject": "agent/probes agent/process agent/protocol agent/ptrace preload/segment",
    "agent/bpf": "agent/evidence agent/probes agent/process agent/protocol agent/session bpf cfi",
    "agent/kernel": "agent/evidence agent/probes agent/process agent/protocol agent/session bpf/kernel",
    "agent/shim": "agent/evidence agent/inject agent/process agent/protocol agent/session preload/segment",
    "agent/snoop": "agent/evidence agent/probes agent/process agent/protocol agent/session bpf/snoop",
    "agent": "agent/bpf agent/inject agent/kernel agent/probes agent/process agent/protocol agent/scan agent/shim "
    "agent/snoop",
}
FOLDERS = ("agent", "bpf", "cfi", "preload")


def includes() -> list[tuple[Path, Path]]:
    pairs = []
    for file in [
        *DEVICE.glob("*.h"),
        *(file for folder in FOLDERS for file in (DEVICE / folder).rglob("*.[ch]")),
    ]:
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
            found = next((path for path in (DEVICE / name, file.parent / name) if path.is_file()), None)
            if found:
                pairs.append((file.relative_to(DEVICE), found.relative_to(DEVICE)))
    return pairs


def test_rooms_include_what_the_table_allows() -> None:
    order = list(ROOMS)
    assert not {str(file.parent) for pair in includes() for file in pair} - set(ROOMS), "not in the table"
    assert all(order.index(other) < order.index(name) for name in ROOMS for other in ROOMS[name].split())
    rooms = [(str(file.parent), str(other.parent)) for file, other in includes()]
    wrong = {pair for pair in rooms if pair[1] not in {".", pair[0], *ROOMS[pair[0]].split()}}
    assert not wrong


def test_no_files_include_each_other() -> None:
    graph: dict[Path, set[Path]] = {}
    for file, other in includes():  # foo.c, foo.h and foo.bpf.h are one
        pair = [path.with_name(path.name.split(".")[0]) for path in (file, other)]
        if pair[0] != pair[1]:
            graph.setdefault(pair[0], set()).add(pair[1])
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(path) for path in error.args[1]))


# The files that open a path other than a literal, and what makes it safe.
OPENERS = {
    "agent/process/proc_file.c": "files of /proc/PID, which the kernel makes",
    "agent/probes/probed_file.c": "checked on the descriptor",
    "agent/probes/tracefs.c": "under the mount point of tracefs",
    "agent/inject/checks.c": "settings of the kernel; the state of a control group, under its mount point",
    "agent/inject/library.c": "checked on the descriptor; the shim, which the host names",
}


def test_only_these_files_open_a_path() -> None:
    """A path that a target may choose is opened by probed_file.c or library.c, checked on the descriptor, and used by that."""
    opening = re.compile(r"\b(?:f?open(?:at)?|creat)\((?!\s*\")")
    found = {
        str(file.relative_to(DEVICE))
        for file in (DEVICE / "agent").rglob("*.c")
        for line in file.read_text().splitlines()
        if opening.search(line)
    }
    assert found - {"agent/session/spawn.c", "agent/inject/keeper.c", "agent/shim/attached_target.c"} == set(
        OPENERS
    )
