"""Names out of captured files that are made for the reader's terminal."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from click.testing import CliRunner

from memleak_android.host.commands.unwind import unwind
from tests.unwind.fuzz import seeds
from tests.unwind.fuzz.elf_container import SHT_STRTAB, SHT_SYMTAB, Part, write_elf


def test_names_that_would_write_to_the_terminal(tmp_path: Path) -> None:
    """A function's and a file's name that clear the screen, and one that begins a line of its own."""
    elf = write_elf(
        seeds.X86_64,
        [
            Part(".text", b"\xc3" * 0x1000, flags=6),
            Part(".symtab", bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0x2000), SHT_SYMTAB, link=3),
            Part(".strtab", b"\0f\x1b[2J\r\nroot\0", SHT_STRTAB),
        ],
    )
    maps = b"40100000-40102000 r-xp 0 0:0 0 /a\x1b[2J\xc2\x9b\n"
    (tmp_path / "a\x1b[2J\x9b").write_bytes(elf)
    (tmp_path / "maps.txt").write_bytes(maps)
    (tmp_path / "regs.txt").write_bytes(b"rip: 40100190\nrsp: 7000000\n")
    (tmp_path / "stack.data").write_bytes(bytes(64))
    result = CliRunner().invoke(unwind, [str(tmp_path)])
    assert result.exit_code == 0 and "f\\x1b[2J" in result.output and "/a\\x1b[2J" in result.output
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.output)
