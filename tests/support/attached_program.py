"""Drives tests/device/programs/slot_workload.c, and reads the slots of a running process."""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from tests.support.preload_session import PreloadSession, await_process, find_parts
from tests.support.workloads import PROGRAMS, built

SLOT_TYPES = {1, 6, 7}  # R_X86_64_64, GLOB_DAT, JUMP_SLOT


def slot_workload(*flags: str) -> Path:
    return built(PROGRAMS / "slot_workload", "-fno-builtin", "-w", *flags)


def slot_library() -> Path:
    return built(PROGRAMS / "slot_library", "-fPIC", "-shared", "-w")


@dataclass
class AttachedProgram:
    """One run of the workload, which ends with the block that it is used in."""

    program: Path
    preloaded: str = ""
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [str(self.program), str(find_parts()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "LD_PRELOAD": self.preloaded},
        )
        assert self._answer() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _answer(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def do(self, *commands: str) -> list[str]:
        """The answers, one for each command."""
        answers = []
        for command in commands:
            self.process.stdin.write(command + "\n")
            answers.append(self._answer())
        return answers

    def attached(self, while_attached: Callable[[], object], *, detach: bool = True) -> PreloadSession:
        """A session: attaches, lets `while_attached` act, detaches; returns what the agent reported after the program's end."""
        name = session_name()

        def act() -> None:
            assert self.do(f"attach {name} mode=plt") == ["0"]
            while_attached()
            if detach:
                assert self.do("detach") == ["0"]
            self.end()

        return await_process(name, act)

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def session_name() -> str:
    return f"memleak-test-{os.getpid()}-{secrets.token_hex(4)}:{secrets.token_hex(16)}"


@cache
def _slots_of(path: str) -> tuple[tuple[int, str], ...]:
    """Of a file: the virtual addresses of what its relocations fill with addresses of symbols, and their names."""
    found = []
    with open(path, "rb") as file:
        elf = ELFFile(file)
        dynamic = elf.get_section_by_name(".dynamic")
        if not isinstance(dynamic, DynamicSection):
            return ()
        for section in elf.iter_sections():
            if isinstance(section, RelocationSection) and section["sh_flags"] & 2:  # SHF_ALLOC
                symbols = elf.get_section(section["sh_link"])
                for one in section.iter_relocations():
                    if one["r_info_type"] in SLOT_TYPES and one["r_info_sym"]:
                        found.append((one["r_offset"], symbols.get_symbol(one["r_info_sym"]).name))
    return tuple(found)


def _modules(pid: int) -> Iterator[tuple[str, int]]:
    """Path and load bias of the mapped ELF files but the shim."""
    seen = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if (
            len(fields) == 6
            and fields[2] == "00000000"
            and fields[5].startswith("/")
            and fields[5] not in seen
        ):
            seen.add(fields[5])
            if "libmemleak" not in fields[5] and not fields[5].startswith("/memfd:"):
                yield fields[5], int(fields[0].split("-")[0], 16)


def slots(pid: int) -> dict[tuple[str, str, int], int]:
    """(path, symbol, virtual address) → what the slot holds."""
    found = {}
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for path, bias in _modules(pid):
            for vaddr, symbol in _slots_of(path):
                memory.seek(bias + vaddr)
                found[path, symbol, vaddr] = int.from_bytes(memory.read(8), "little")
    return found


def protections(pid: int) -> dict[int, str]:
    """Page → protection, of the pages of mapped ELF files but the shim's."""
    paths = {path for path, _ in _modules(pid)}
    pages = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] in paths:
            low, high = (int(number, 16) for number in fields[0].split("-"))
            pages.update(dict.fromkeys(range(low, high, 4096), fields[1]))
    return pages
