"""Where frames in Python go in a stack, and their lines, against the interpreter's own code objects."""

import argparse
import ast
import dataclasses
import json
import subprocess
import typing
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import numpy as np
import pytest

from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.stacks.python_code import PythonFunctions, line_of, python_module
from memleak_android.host.stacks.python_stacks import PythonStacks
from memleak_android.host.stacks.samples import Samples
from memleak_android.host.wire.blocks import EVIDENCE, FRAME_ROW, PYTHON_FRAME, PythonLines
from memleak_android.host.wire.frame_chains import SentChains
from memleak_android.host.wire.python_frames import PythonCode, SentPython, decode_codes, encode_code
from memleak_android.unwind.arch import arch_by_name
from memleak_android.unwind.trace import Method, SampleBatch, TraceBatch
from tests.support.builders.python_extensions import interpreters

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


DUMP = """
import json, sys
def codes(code):
    yield code
    for each in code.co_consts:
        if hasattr(each, "co_code"):
            yield from codes(each)
made = codes(compile(open(sys.argv[1]).read(), "x", "exec"))
print(json.dumps([[each.co_firstlineno, each.co_linetable.hex(), list(each.co_lines())] for each in made]))
"""


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def code_of(
    first_line: int, table: bytes, lines: PythonLines = PythonLines.LOCATIONS, function: str = "f"
) -> PythonCode:
    return PythonCode(7, 1, function, "x.py", first_line, lines, table)


@pytest.mark.parametrize("module", [argparse, ast, dataclasses, typing], ids=lambda module: module.__name__)
def test_every_instruction_of(module: ModuleType) -> None:
    for code in codes(compile(Path(str(module.__file__)).read_text(), "x", "exec")):
        made = code_of(code.co_firstlineno, code.co_linetable)
        for start, end, line in code.co_lines():
            assert {line_of(made, at) for at in range(start, end, 2)} == {line}, code


def test_every_instruction_as_3_10_keeps_it() -> None:
    found = [path for path, include in interpreters().items() if include.name == "python3.10"]
    if not found:
        pytest.skip("needs Python 3.10 with its headers")
    done = subprocess.run([found[0], "-c", DUMP, str(ast.__file__)], capture_output=True, check=True)
    for first_line, table, lines in json.loads(done.stdout):
        made = code_of(first_line, bytes.fromhex(table), PythonLines.LINETABLE)
        for start, end, line in lines:
            assert {line_of(made, at) for at in range(start, end, 2)} <= {line}


def test_before_and_behind_the_table() -> None:
    code = code_of(10, b"\x80\x00")
    assert line_of(code, 0xFFFFFFFE) == 10  # a frame that has not begun
    assert line_of(code, 2) == 10  # a table that was cut
    assert line_of(code_of(10, b"", typing.cast("PythonLines", 77)), 0) == 10


@pytest.mark.parametrize("table", [b"\xf8" * 50, b"\xe8", b"\xf0\xff\xff\xff\xff\xff\xff\xff", bytes(9)])
def test_hostile_tables(table: bytes) -> None:
    assert line_of(code_of(1, table), 1 << 20) == 1


def test_functions_of_several_processes() -> None:
    functions = PythonFunctions()
    functions.add([dataclasses.replace(code_of(3, b"", function="f"), pid=pid, number=1) for pid in (7, 8)])
    numbers = np.array([8, 9], np.uint32), np.array([1, 1], np.uint32), np.array([4, 4], np.uint32)
    known, unknown = python_module(functions).resolve(functions.vaddrs(*numbers))
    assert (known[0].function, known[0].file, known[0].line) == ("f", "x.py", 3)
    assert (unknown[0].function, unknown[0].file, unknown[0].line) == ("[function in Python]", None, None)


def test_codes_are_read_as_they_were_written() -> None:
    made = code_of(3, b"\x80\x00\x01", function="grüße")
    data = encode_code(made)
    assert decode_codes(data, [0]) == [made]
    longer = bytearray(data)
    longer[16:18] = b"\xff\xff"  # function_bytes
    assert decode_codes(bytes(longer), [0]) == []


def test_a_name_longer_than_the_shim_sends_is_cut() -> None:
    """Bytes that are no UTF-8 grow when they are decoded and encoded again."""
    data = bytearray(encode_code(code_of(1, b"", function="f" * 60_000)))
    data[24:60_024] = b"\xff" * 60_000
    (found,) = decode_codes(bytes(data), [0])
    (again,) = decode_codes(encode_code(found), [0])
    assert len(found.function) == 1024 and found.file == again.file == "x.py"
