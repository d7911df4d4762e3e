"""docs/wire-protocol.md against device/wire*.h: each structure has a drawing, and each drawing compiles."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "device" / "wire.h"
PARTS = ("wire.h", "wire_hooks.h", "wire_python.h", "wire_recording.h", "wire_calls.h")
TEXT = "".join(HEADER.with_name(name).read_text() for name in PARTS)
DOCUMENT = ROOT / "docs" / "wire-protocol.md"
WIDTHS = {"u16": 2, "u32": 4, "s32": 4, "u64": 8, "char": 1, "ml_fixup": 16}


# Name → its size and its fields as (offset, name, bytes).
Drawn = dict[str, tuple[int, list[tuple[int, str, int]]]]


def drawings(text: str) -> Drawn:
    found = {}
    for name, size, body in re.findall(r"^struct (\w+), (\d+) bytes\n((?: *\d+  .*\n)+)", text, re.MULTILINE):
        fields = []
        for line in body.splitlines():
            number, *cells = line.split()
            offset = int(number)
            for cell in cells:
                parts = re.fullmatch(r"(\w+):(\w+?)(?:\[(\d+)\])?", cell)
                assert parts is not None, cell
                field, width, count = parts.groups()
                size_bytes = WIDTHS[width] * int(count or 1)
                fields.append((offset, field, size_bytes))
                offset += size_bytes
        found[name] = (int(size), fields)
    return found


def assertions(structs: Drawn) -> str:
    lines = [
        "#include <stddef.h>",
        *(f'#include "{HEADER.with_name(name)}"' for name in ("wire.h", "wire_calls.h")),
    ]
    for name, (size, fields) in structs.items():
        lines.append(f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");')
        for offset, field, width in fields:
            lines.append(f'_Static_assert(offsetof(struct {name}, {field}) == {offset}, "{name}.{field}");')
            lines.append(
                f'_Static_assert(sizeof(((struct {name} *)0)->{field}) == {width}, "{name}.{field}");'
            )
    return "\n".join([*lines, ""])


def compiles(source: str) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    argv = [compiler, "-std=c11", "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(argv, input=source, text=True, capture_output=True, check=False)


def drawn(mirrors: dict[str, np.dtype[np.void]]) -> Drawn:
    """NumPy's structures as the document's drawings are."""
    return {
        name: (dtype.itemsize, [(dtype.fields[f][1], f, dtype[f].itemsize) for f in dtype.names])
        for name, dtype in mirrors.items()
        if dtype.fields is not None and dtype.names is not None
    }


def check(structs: Drawn | None = None, *, numbers: dict[str, int] | None = None, behind: str = "") -> None:
    """By a C compiler, against the headers. behind: more declarations."""
    values = "".join(f'_Static_assert({name} == {n}, "{name}");\n' for name, n in (numbers or {}).items())
    done = compiles(f"{assertions({})}{behind}\n{assertions(structs or {})}{values}")
    assert done.returncode == 0, done.stderr


def test_drawings_are_what_the_header_says() -> None:
    check(drawings(DOCUMENT.read_text()))


def test_a_wrong_drawing_is_found() -> None:
    wrong = DOCUMENT.read_text().replace("pid:u32  tid:u32", "tid:u32  pid:u32", 1)
    assert compiles(assertions(drawings(wrong))).returncode != 0


def test_every_structure_is_drawn_whole() -> None:
    found = drawings(DOCUMENT.read_text())
    assert set(found) == set(re.findall(r"^struct (\w+) \{", TEXT, re.MULTILINE))
    for name, (size, fields) in found.items():
        assert sum(width for _, _, width in fields) == size, name


def test_every_enumerated_number_is_in_its_table() -> None:
    text = DOCUMENT.read_text()
    header = TEXT
    for prefix, rows in (
        ("ML_BLOCK_[A-Z]+", r"^ +{} [A-Z]"),
        ("ML_LOST_[A-Z_]+", r"^`lost`.*\b{} [a-z]"),
        ("ML_REASON_[A-Z_]+", r"^{} \| "),
    ):
        for number in re.findall(rf"^\t{prefix} = (\d+),", header, re.MULTILINE):
            if number != "16":  # ML_LOST_MAX
                assert re.search(rows.format(number), text, re.MULTILINE), (prefix, number)


def test_every_input_line_is_described() -> None:
    agent = ROOT / "device" / "agent"
    source = (agent / "protocol" / "config.c").read_text() + (agent / "inject" / "patch_plan.c").read_text()
    keys = re.findall(r'strcmp\(key, "(\w+)"\)', source) + re.findall(r"NUMBER\((\w+)\)", source)
    assert {"wire", "probe", "pid"} < set(keys)
    described = DOCUMENT.read_text().split("## 8.")[1].split("## 9.")[0]
    assert not {key for key in keys if key != "field" and f"`{key} " not in described}
