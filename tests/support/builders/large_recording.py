"""A finished recording of any size, by the product's own writer: a call tree over functions of this machine's libraries."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile
from numpy.typing import NDArray

from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.heap.key_history import KeySnapshot, held_by_key
from memleak_android.host.heap.survivors import Survivors
from memleak_android.host.profile.coverage import Condition
from memleak_android.host.recording.file import write_finished
from memleak_android.host.recording.write import recording_blocks
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import FRAME_ROW, KEY_ROW, LIVE_ROW, STATUS, TRACE_ROW, Function, Rows
from memleak_android.host.wire.session import SessionInfo, coverage_field
from memleak_android.unwind.trace import Method, TraceEnd
from tests.support.builders import blocks as builders

PID, THREADS = 100, 32
BEGIN_NS, SECOND = 10**9, 10**9
STACKS_PER_CALLER = 10
DEEPNESS = 0.6  # below 1: callers are called from the lately made ones rather, and stacks are deeper
PLACES_PER_FUNCTION = 3
FUNCTIONS_MAX = 8_000
TRACES_AT_ONCE = 1 << 16
LIBRARY_NAMES = ("libc.so", "libstdc++.so", "libcrypto.so", "libssl.so", "libm.so", "libpython3")

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CallTree:
    """Nodes by number: parent (-1 = a thread's first function) and location of code. The last n_stacks are stacks' ends."""

    parent: Numbers
    location: Numbers
    depth: Numbers
    n_stacks: int


def libraries() -> list[Path]:
    """Mapped by this very process."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found = sorted(Path(path) for path in mapped if path.startswith("/"))
    names = (*LIBRARY_NAMES, Path(sys.executable).resolve().name)
    return [path for path in found if path.name.startswith(names)]


def code_locations(paths: list[Path]) -> tuple[Rows, list[ModuleFile]]:
    """Return addresses in functions of these files (FRAME_ROW), and the files."""
    rows, files = [], []
    for number, path in enumerate(paths):
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            note = elf.get_section_by_name(".note.gnu.build-id")
            build_id = next((n["n_desc"] for n in note.iter_notes()), "") if note else ""
            symbols = elf.get_section_by_name(".dynsym").iter_symbols()
            functions = {
                (s["st_value"], s["st_size"])
                for s in symbols
                if s["st_info"]["type"] == "STT_FUNC" and s["st_size"] >= 16 and s["st_value"]
            }
        files.append(ModuleFile(str(path), build_id, memoryview(b""), None))
        starts = np.array(sorted(functions)[:FUNCTIONS_MAX], np.uint64).reshape(-1, 2)
        of_file = np.zeros((len(starts), PLACES_PER_FUNCTION), FRAME_ROW)
        of_file["vaddr"] = starts[:, :1] + 5 + np.arange(PLACES_PER_FUNCTION, dtype=np.uint64) * 4
        of_file["address"] = of_file["vaddr"] + np.uint64(0x7F00_0000_0000 + (number << 32))
        of_file["module"], of_file["method"], of_file["is_return"] = number, Method.EH_FRAME, 1
        rows.append(of_file.reshape(-1))
    return np.concatenate(rows), files


def call_tree(n_stacks: int, n_locations: int, random: np.random.Generator) -> CallTree:
    """A random recursive tree of callers, as deep as its size's logarithm; under them n_stacks distinct ends."""
    n_callers = max(n_stacks // STACKS_PER_CALLER, 1)
    callers = np.concatenate(
        [[-1], (random.random(n_callers - 1) ** DEEPNESS * np.arange(1, n_callers)).astype(np.int64)]
    )
    parent = np.concatenate([callers, np.arange(n_stacks) % n_callers])
    order = np.argsort(parent, kind="stable")
    is_first = np.ones(len(parent), bool)
    is_first[1:] = np.diff(parent[order]) != 0
    begin = np.maximum.accumulate(np.where(is_first, np.arange(len(parent)), 0))
    nth = np.empty(len(parent), np.int64)  # among its parent's children: they lie at different locations
    nth[order] = np.arange(len(parent)) - begin
    assert nth.max() < n_locations
    location = (random.integers(0, n_locations, len(parent))[parent] + nth) % n_locations
    depth = np.ones(len(parent), np.int64)
    for node in range(1, n_callers):
        depth[node] = depth[parent[node]] + 1
    depth[n_callers:] = depth[parent[n_callers:]] + 1
    return CallTree(parent, location, depth, n_stacks)


def stack_table(tree: CallTree, locations: Rows) -> StackTable:
    table = StackTable()
    first = len(tree.parent) - tree.n_stacks
    for begin in range(first, len(tree.parent), TRACES_AT_ONCE):
        node = np.arange(begin, min(begin + TRACES_AT_ONCE, len(tree.parent)))
        traces = np.zeros(len(node), TRACE_ROW)
        traces["sequence"] = traces["key"] = node - first + 1
        traces["pid"], traces["n_frames"] = PID, tree.depth[node]
        traces["function"], traces["end"] = Function.MALLOC, TraceEnd.ROOT
        path = np.full((len(node), int(tree.depth[node].max())), -1, np.int64)
        for level in range(path.shape[1]):
            path[:, level] = np.where(node >= 0, tree.location[node], -1)
            node = np.where(node >= 0, tree.parent[node], -1)
        table.append(traces, locations[path[path >= 0]])
    return table


def live_rows(n_blocks: int, n_stacks: int, random: np.random.Generator) -> tuple[Rows, Numbers]:
    """Each stack holds a block; the rest is spread as unevenly as programs do. And the trace of each block."""
    uneven = (random.random(n_blocks - n_stacks) ** 3 * n_stacks).astype(np.int64)
    trace = np.concatenate([np.arange(n_stacks), uneven])
    random.shuffle(trace)
    live = np.zeros(n_blocks, LIVE_ROW)
    live["size"] = 16 * (1 + (random.pareto(1.2, n_blocks) * 2).astype(np.int64).clip(0, 1 << 20))
    live["address"] = 0x7000_0000_0000 + np.cumsum(live["size"] + 16)
    live["sequence"] = np.arange(1, n_blocks + 1)
    live["timestamp_ns"] = BEGIN_NS + np.linspace(0, 60 * SECOND, n_blocks).astype(np.int64)
    live["key"] = trace + 1
    live["pid"], live["function"] = PID, Function.MALLOC
    live["tid"] = PID + random.integers(0, THREADS, n_blocks)
    return live, trace


def write(path: Path, n_blocks: int, n_stacks: int, seed: int = 23) -> None:
    random = np.random.default_rng(seed)
    locations, files = code_locations(libraries())
    table = stack_table(call_tree(n_stacks, len(locations), random), locations)
    live, trace = live_rows(n_blocks, n_stacks, random)
    keys = np.zeros(n_stacks, KEY_ROW)
    keys["key"], keys["pid"] = np.arange(1, n_stacks + 1), PID
    keys["alloc_objects"] = np.bincount(trace, minlength=n_stacks) * 2
    keys["alloc_bytes"] = np.bincount(trace, live["size"], n_stacks).astype(np.int64) * 2
    end_ns = BEGIN_NS + 61 * SECOND
    coverage = coverage_field({Condition.FUNCTIONS: (), Condition.PROGRAMS: ()})
    session = {"command": "large", "tracer": "preload", "pid": PID, "coverage": coverage}
    capture = Capture(session=SessionInfo.decode(session))
    capture.hello = payloads.decode_hello(builders.hello(pid=PID, monotonic_ns=BEGIN_NS).payload)
    capture.end = payloads.decode_end(builders.end(timestamp_ns=end_ns).payload)
    for at in (20, 40):
        earlier = live[live["timestamp_ns"] < BEGIN_NS + at * SECOND]
        capture.key_history.add(KeySnapshot(BEGIN_NS + at * SECOND, held_by_key(earlier)))
    status = np.zeros(1, STATUS)[0]
    status["timestamp_ns"], status["alloc_objects"] = end_ns, keys["alloc_objects"].sum()
    status["alloc_bytes"] = keys["alloc_bytes"].sum()
    capture.status = status
    snapshot = Snapshot(1, end_ns, live, keys, is_whole=True)
    survivors = Survivors(snapshot, trace, np.zeros(n_blocks, bool), table, files)
    write_finished(path, recording_blocks(capture, survivors))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("n_blocks", type=int)
    parser.add_argument("n_stacks", type=int)
    given = parser.parse_args()
    write(given.path, given.n_blocks, given.n_stacks)
