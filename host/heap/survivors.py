"""The blocks held and their stacks: live table × unwound evidence, or read from a finished recording."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.heap import attribution
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.heap.key_history import KeySnapshot
from memleak_android.host.heap.keys import find_sorted, key_identity
from memleak_android.host.profile.profile import FpAgreement, LeakKind
from memleak_android.host.profile.runtime_sites import JIT_FRAMES, PYTHON_FRAMES
from memleak_android.host.stacks import fp_agreement
from memleak_android.host.stacks.address_spaces import AddressSpaces
from memleak_android.host.stacks.kernel_stacks import kernel_modules
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.stacks.perf_maps import jit_module, recorded_functions
from memleak_android.host.stacks.python_code import python_module
from memleak_android.host.stacks.stack_unwinder import EvidenceView, StackUnwinder, UnwindPlan
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.wire.blocks import (
    KEY_ROW,
    LIVE_ROW,
    NO_TRACE,
    SITE_LEAK_MASK,
    SITE_LEAK_SHIFT,
    SITE_ROW,
    KeyFlag,
    Rows,
    SiteFlag,
)
from memleak_android.host.wire.packed import distinct

EMPTY_SNAPSHOT = Snapshot(0, 0, np.empty(0, LIVE_ROW), np.empty(0, KEY_ROW), is_whole=False)


TOP_KEYS_MAX = 1_000  # by each measure
_BEFORE_EXIT = 3  # snapshots: in the last of them an ending program may have given all back


@dataclass(frozen=True, slots=True)
class Survivors:
    """The blocks held at a snapshot, and their stacks.

    trace: for each live block a number in `stacks`, attribution.UNATTRIBUTED = unattributed. is_approximate: likewise by block.
    fp_agreement: of `--unwind both`. leak_kinds: by block, of `--reachability` (host/analysis/reachability.py).
    """

    snapshot: Snapshot
    trace: NDArray[np.int64]
    is_approximate: NDArray[np.bool_]
    stacks: StackTable
    files: Sequence[ModuleFile]
    fp_agreement: FpAgreement | None = None
    leak_kinds: NDArray[np.int8] | None = None


def find_survivors(capture: Capture, unwinder: StackUnwinder, with_past: bool = False) -> Survivors:
    """The blocks of the last whole snapshot with their stacks.

    with_past: unwinds also what held most at the peak or before the end, and what allocated most, even if it holds nothing any more.
    """
    snapshot, references = capture.snapshot or EMPTY_SNAPSHOT, capture.evidence()
    spaces = AddressSpaces(capture.maps, capture.mappings, capture.processes)
    tracing = capture.session.tracing
    plan = UnwindPlan(capture.arch_number, tracing.unwind_mode, tracing.max_frames)
    attributed = attribution.attribute(snapshot.live, references, spaces.parents)
    wanted = attribution.evidence_of_held_keys(snapshot.live, attributed, references)
    if with_past:
        past = [capture.high_water.at, *capture.key_history.instants[-_BEFORE_EXIT:]]
        keys = top_keys([each for each in past if each], snapshot.keys)
        wanted = np.union1d(wanted, _first_evidence(references, keys))
    images = spaces.images(references["pid"], references["timestamp_ns"])
    evidence = EvidenceView(references[wanted], references["timestamp_ns"][wanted], images[wanted])
    traces = np.full(len(references), attribution.UNATTRIBUTED, np.int64)
    traces[wanted] = unwinder.unwind(evidence, spaces, plan)
    stacks = np.full(len(references), attribution.UNATTRIBUTED, np.int64)
    stacks[wanted] = unwinder.stacks.stack_of_trace[traces[wanted]]
    is_unsure = attribution.ambiguous_evidence(attribution.key_groups(references, images), stacks, wanted)
    is_unsure |= np.isin(
        references["key"], snapshot.keys["key"][(snapshot.keys["flags"] & np.uint64(KeyFlag.PARTIAL)) != 0]
    )
    trace = np.full(len(snapshot.live), attribution.UNATTRIBUTED, np.int64)
    is_approximate = np.zeros(len(trace), bool)
    found = np.flatnonzero(attributed.evidence != attribution.UNATTRIBUTED)
    trace[found] = traces[attributed.evidence[found]]
    is_approximate[found] = is_unsure[attributed.evidence[found]]
    is_approximate &= ~attributed.is_own
    shared = found[~attributed.is_own[found]]
    moved, moved_evidence = _moved(snapshot.live[shared], references[attributed.evidence[shared]], spaces)
    trace[shared[moved]] = unwinder.unwind(moved_evidence, spaces, plan)
    agreement = unwinder.agreement(plan.mode)
    return Survivors(snapshot, trace, is_approximate, unwinder.stacks, unwinder.files.files, agreement)


def top_keys(past: Sequence[KeySnapshot], keys: Rows) -> NDArray[np.uint64]:
    """Identities (key_identity) of the keys that held most at an instant, and that allocated most bytes and blocks.

    keys: KEY_ROW at the end.
    """
    held = [_largest(each.rows, each.rows["space"]) for each in past]
    by_count, by_space = (_largest(keys, keys[name]) for name in ("alloc_objects", "alloc_bytes"))
    return np.unique(np.concatenate([*held, by_count, by_space]))


def _largest(rows: Rows, weight: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if len(rows) > TOP_KEYS_MAX:
        rows = rows[np.argpartition(weight, len(rows) - TOP_KEYS_MAX)[len(rows) - TOP_KEYS_MAX :]]
    return key_identity(rows)


def _first_evidence(references: Rows, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Indexes of the first evidence (EVIDENCE_REFERENCE) of each key that has any."""
    found = np.flatnonzero(np.isin(key_identity(references), keys))
    _, first = np.unique(key_identity(references[found]), return_index=True)
    return np.asarray(found[first])


def _moved(live: Rows, references: Rows, spaces: AddressSpaces) -> tuple[NDArray[np.int64], EvidenceView]:
    """Indexes of blocks whose process had other code at their key's addresses than when the evidence was taken.

    A key covers addresses only. If a library was closed and another one loaded there in between, the evidence is unwound
    again with the mappings of the block's time. live, references: a block and its evidence, by row.
    """
    images = spaces.images(references["pid"], live["timestamp_ns"])
    moved = np.flatnonzero(images != spaces.images(references["pid"], references["timestamp_ns"]))
    chosen = moved
    if len(moved):  # one time for all blocks of a record and an image
        first, pair = distinct(references["sequence"][moved], images[moved])
        chosen = moved[first][pair]
    return moved, EvidenceView(references[chosen], live["timestamp_ns"][chosen], images[chosen])


def recorded_survivors(capture: Capture, open_module: Callable[[str, str], ModuleFile]) -> Survivors:
    """Survivors of a finished recording, whose stacks are read, not unwound. open_module: path and build-id → module."""
    snapshot = capture.snapshot or EMPTY_SNAPSHOT
    stacks, sites = capture.stacks, _sites_of(snapshot.live, capture.take_sites())
    has_stack = (sites["trace"] != NO_TRACE) & (sites["trace"] < len(stacks))
    trace = np.where(has_stack, sites["trace"].astype(np.int64), attribution.UNATTRIBUTED)
    is_approximate = has_stack & ((sites["flags"] & np.uint32(SiteFlag.APPROXIMATE)) != 0)
    leaks = (sites["flags"] >> np.uint32(SITE_LEAK_SHIFT)) & np.uint32(SITE_LEAK_MASK)
    leak_kinds = np.where(leaks <= len(LeakKind), leaks, 0).astype(np.int8) - np.int8(1)
    modules = {**kernel_modules(capture.kernel_symbols), PYTHON_FRAMES: python_module(capture.python)}
    files = []
    for each in capture.modules:
        path, build_id = str(each.get("path", "")), str(each.get("build_id", ""))
        is_jit = path == JIT_FRAMES
        recorded = jit_module(recorded_functions(each.get("functions"))) if is_jit else modules.get(path)
        files.append(recorded or open_module(path, build_id))
    agreement = fp_agreement.read(capture.session.findings.fp_agreement)
    known = leak_kinds if (leak_kinds >= 0).any() else None
    return Survivors(snapshot, trace, is_approximate, stacks, files, agreement, known)


def _sites_of(live: Rows, sites: Rows) -> Rows:
    """The SITE_ROW of each live block, by sequence number; trace NO_TRACE where it has none.

    The writer keeps the order of the blocks, so usually nothing is sorted.
    """
    if len(sites) == len(live) and (sites["sequence"] == live["sequence"]).all():
        return sites
    found = np.zeros(len(live), SITE_ROW)
    found["trace"] = NO_TRACE
    order = np.argsort(sites["sequence"], kind="stable")
    index, is_found = find_sorted(sites["sequence"][order], live["sequence"])
    found[is_found] = sites[order[index[is_found]]]
    return found
