"""Where frames in Python go in a stack."""

import numpy as np
import pytest

from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.stacks.python_code import PythonFunctions
from memleak_android.host.stacks.python_stacks import PythonStacks
from memleak_android.host.stacks.samples import Samples
from memleak_android.host.wire.blocks import EVIDENCE, FRAME_ROW, PYTHON_FRAME
from memleak_android.host.wire.frame_chains import SentChains
from memleak_android.host.wire.python_frames import PythonCode, SentPython
from memleak_android.unwind.arch import arch_by_name
from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch

NAMES = "fghij"


def joined(
    native: list[list[int]], python: list[list[tuple[str, int]]], cut: tuple[int, ...] = ()
) -> list[list[str]]:
    """native: stack pointers by trace. python: function and address by trace. cut: traces with more frames."""
    functions = PythonFunctions()
    functions.add([PythonCode(7, i + 1, name, "x", 1, 0, b"") for i, name in enumerate(NAMES)])
    flat = [frame for frames in python for frame in frames]
    frames = np.zeros(len(flat), PYTHON_FRAME)
    frames["code"] = [NAMES.index(name) + 1 for name, _ in flat]
    frames["stack_address"] = [address for _, address in flat]
    rows = np.zeros(len(native), EVIDENCE)
    rows["pid"] = 7
    counts = np.array(list(map(len, python)), np.int64)
    sent = SentPython(counts, np.isin(np.arange(len(native)), cut), frames)
    batch = TraceBatch(
        offsets=np.concatenate([[0], np.cumsum(list(map(len, native)))]).astype(np.int64),
        address=np.array([sp for trace in native for sp in trace], np.uint64),
        sp=np.array([sp for trace in native for sp in trace], np.uint64),
        is_return=np.ones(sum(map(len, native)), np.bool_),
        method=np.zeros(sum(map(len, native)), np.uint8),
        end=np.zeros(len(native), np.uint8),
    )
    native_rows = np.zeros(len(batch.address), FRAME_ROW)
    native_rows["address"] = batch.address
    none = np.empty(0, np.int64)
    samples = Samples(
        none,
        rows,
        _no_batch(),
        SentChains(none == 1, none, none.astype(np.uint8), none.astype(np.uint64)),
        sent,
    )
    traces, found = PythonStacks(functions, ModuleFiles(LocalFiles(False))).join(samples, batch, native_rows)
    names = [
        functions.codes[int(row["vaddr"]) >> 32].function
        if row["method"] == Method.PYTHON
        else "…"
        if row["method"] == Method.FOLDED
        else str(row["address"])
        for row in found
    ]
    return [names[first:end] for first, end in zip(traces.offsets[:-1], traces.offsets[1:], strict=True)]


def _no_batch() -> SampleBatch:
    arch = arch_by_name("x86_64")
    assert arch is not None
    none = np.empty(0, np.uint64)
    return SampleBatch(
        arch, none.reshape(0, 1), none.reshape(0, 1) == 1, none, none.astype(np.int64), none.astype(np.int64),
        none.astype(np.uint8), none.astype(np.int32), none == 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("native", "python", "expected"),
    [
        ([10, 20, 30, 40], [("f", 0), ("g", 35)], "10 20 f g 30 40"),  # one C function runs both
        ([10, 20, 30, 40], [("f", 25), ("g", 35)], "10 f 20 g 30 40"),
        ([10, 20, 30, 40], [("f", 20), ("g", 0)], "10 f 20 30 40 g"),  # the runner of g is not known
        ([10, 20], [("f", 55)], "10 20 f"),  # the stack was cut before it
        ([0, 0, 0], [("f", 25)], "0 0 0 f"),  # by frame pointers: no stack pointers
        ([10, 20], [], "10 20"),
    ],
)
def test_frames_go_before_the_function_that_runs_them(
    native: list[int], python: list[tuple[str, int]], expected: str
) -> None:
    others = [50, 60], [("h", 55)]
    first, second, third = joined([others[0], native, others[0]], [others[1], python, others[1]])
    assert " ".join(second) == expected
    assert first == third == ["h", "50", "60"] or first == third == ["50", "h", "60"] or first == third


def test_frames_left_out_are_marked() -> None:
    assert joined([[10, 20], [10, 20]], [[("f", 15)], [("g", 15), ("h", 0)]], cut=(1,)) == [
        ["f", "10", "20"],
        ["g", "10", "20", "h", "…"],
    ]
