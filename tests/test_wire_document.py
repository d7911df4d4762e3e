"""docs/wire-protocol.md against device/wire*.h: each structure has a drawing, and each drawing compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "device" / "wire.h"
PARTS = ("wire.h", "wire_high_water.h", "wire_hooks.h", "wire_calls.h")
TEXT = "".join(HEADER.with_name(name).read_text() for name in PARTS)
DOCUMENT = ROOT / "docs" / "wire-protocol.md"
WIDTHS = {"u16": 2, "u32": 4, "s32": 4, "u64": 8, "char": 1, "ml_fixup": 16}


def drawings(text: str) -> dict[str, tuple[int, list[tuple[int, str, int]]]]:
    """Name → its size and its fields as (offset, name, bytes)."""
    found = {}
    for name, size, body in re.findall(r"```text\nstruct (\w+), (\d+) bytes\n(.*?)```", text, re.DOTALL):
        fields = []
        for line in body.splitlines():
            number, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
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


def assertions(drawn: dict[str, tuple[int, list[tuple[int, str, int]]]]) -> str:
    lines = [
        "#include <stddef.h>",
        *(f'#include "{HEADER.with_name(name)}"' for name in ("wire.h", "wire_calls.h")),
    ]
    for name, (size, fields) in drawn.items():
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


def test_drawings_are_what_the_header_says() -> None:
    done = compiles(assertions(drawings(DOCUMENT.read_text())))
    assert done.returncode == 0, done.stderr


def test_a_wrong_drawing_is_found() -> None:
    wrong = DOCUMENT.read_text().replace("| pid:u32 | tid:u32 |", "| tid:u32 | pid:u32 |", 1)
    assert compiles(assertions(drawings(wrong))).returncode != 0


def test_every_structure_is_drawn_whole() -> None:
    drawn = drawings(DOCUMENT.read_text())
    assert set(drawn) == set(re.findall(r"^struct (\w+) \{", TEXT, re.MULTILINE))
    for name, (size, fields) in drawn.items():
        assert sum(width for _, _, width in fields) == size, name


def test_every_enumerated_number_is_in_its_table() -> None:
    text = DOCUMENT.read_text()
    header = TEXT
    for prefix, rows in (
        ("ML_BLOCK_[A-Z]+", r"^\| {} \| [A-Z]"),
        ("ML_LOST_[A-Z_]+", r"^\| {} \| "),
        ("ML_REASON_[A-Z_]+", r"^\| {} \| "),
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
