"""Writes planted.h: the numbers of demo.json as C++ constants, so that each is defined once."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def header(table: dict[str, list[dict[str, object]]]) -> str:
    lines = ["#pragma once", "#include <cstddef>", "namespace demo {", "struct Leak {"]
    lines += ["\tstd::size_t objects;", "\tstd::size_t size;", "};"]
    for leak in table["leaks"]:
        lines.append(f"constexpr Leak {leak['name']}_leak = {{{leak['objects']}, {leak['size']}}};")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    source, destination = map(Path, sys.argv[1:])
    destination.write_text(header(json.loads(source.read_text())))
