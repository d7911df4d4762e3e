"""Two unwind modes compared: each kind of disagreement is distinguished."""

from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memleak_android.host.stacks import fp_agreement
from memleak_android.host.stacks.fp_agreement import Comparison
from memleak_android.host.wire.blocks import FRAME_ROW
from memleak_android.unwind.trace import TraceBatch, TraceEnd

FILES: Any = [SimpleNamespace(path="/bin/program"), SimpleNamespace(path="/lib/libc.so.6")]
PROGRAM, LIBC = 0, 1
# function, its callers, main; __libc_start_call_main, __libc_start_main; _start
CFI = [10, 11, 12, 13, 14, 90, 91, 15]
MODULES = [PROGRAM] * 5 + [LIBC] * 2 + [PROGRAM]


def batch(*stacks: Sequence[int], end: TraceEnd = TraceEnd.ROOT) -> TraceBatch:
    address = np.array([address for stack in stacks for address in stack], np.uint64)
    offsets = np.cumsum([0, *map(len, stacks)])
    plain = np.zeros(len(address), np.uint8)
    ends = np.full(len(stacks), end, np.uint8)
    return TraceBatch(offsets, address, address, plain.astype(bool), plain, ends)


def compared(*chains: Sequence[int], judges: bool = True, end: TraceEnd = TraceEnd.ROOT) -> dict[str, float]:
    frames = np.zeros(len(CFI) * len(chains), FRAME_ROW)
    frames["module"] = MODULES * len(chains)
    comparison = Comparison()
    is_judge = np.full(len(chains), judges)
    comparison.add(batch(*[CFI] * len(chains), end=end), batch(*chains), is_judge, frames, FILES)
    return {name: value for name, value in asdict(comparison.result()).items() if value}


@pytest.mark.parametrize(
    ("chain", "kind", "common"),
    [
        (CFI, "identical", 8),
        (CFI[:7], "start_missing", 7),
        (CFI[:5], "start_missing", 5),
        (CFI[:4], "cut", 4),
        (CFI[:1], "cut", 1),
        ([10, 12, 13, 14, 90], "caller_missing", 1),
        ([10, 11, 13, 14], "skipped", 2),
        ([10, 11, 99], "wrong", 2),
        ([10, 11, 12, 13, 14, 90, 91, 15, 16], "wrong", 8),
        ([10, 12, 11], "wrong", 1),
    ],
)
def test_each_stack_is_of_one_kind(chain: list[int], kind: str, common: int) -> None:
    assert compared(chain) == {"stacks": 1, kind: 1, "mean_common_prefix": common, "mean_depth": 8}


def test_stacks_are_judged_each_for_itself() -> None:
    agreed = compared(CFI, CFI[:5], [10, 99], CFI[:2])
    kinds = dict.fromkeys(("identical", "start_missing", "wrong", "cut"), 1)
    assert agreed == {"stacks": 4, **kinds, "mean_common_prefix": 4, "mean_depth": 8}


def test_what_cannot_be_judged_is_not_counted() -> None:
    assert compared(CFI, judges=False) == {}
    assert compared(CFI[:3], end=TraceEnd.STACK_TRUNCATED) == {}


def test_only_the_c_library_may_be_missing_at_the_start() -> None:
    frames = np.zeros(3, FRAME_ROW)  # all of the program's own
    comparison = Comparison()
    comparison.add(batch([1, 2, 3]), batch([1, 2]), np.ones(1, bool), frames, FILES)
    assert comparison.result().cut == 1


def test_what_a_recording_keeps_is_read_back_or_passed_over() -> None:
    result = Comparison(stacks=3, identical=2, wrong=1, common_frames=9, frames=12).result()
    assert fp_agreement.read(asdict(result)) == result
    assert fp_agreement.read(None) is None
    assert fp_agreement.read({"stacks": "many"}) is None
