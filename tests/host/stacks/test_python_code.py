"""Lines of instructions in Python, against the interpreter's own code objects."""

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

from memleak_android.host.stacks.python_code import PythonFunctions, line_of, python_module
from memleak_android.host.wire.blocks import PythonLines
from memleak_android.host.wire.python_frames import PythonCode, decode_codes, encode_code
from tests.support.builders.python_extensions import interpreters

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
