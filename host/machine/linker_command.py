"""Commands that begin with the dynamic linker: `ld.so --library-path FOLDER PROGRAM ARGUMENT…` (ld.so(8), musl's ldso/dynlink.c)."""

import re
from collections.abc import Sequence

_LINKER = re.compile(
    r"(.*/)?(ld-linux[\w-]*\.so\.\d+|ld-[\d.]+\.so|ld64\.so\.\d+|ld-musl-[\w-]+\.so\.1)"
    r"|/(system|apex/[\w.]+)/bin/(bootstrap/)?linker(64)?",
    re.DOTALL,
)
_WITH_VALUE = (
    "--library-path",
    "--preload",
    "--argv0",
    "--audit",
    "--inhibit-rpath",
    "--glibc-hwcaps-prepend",
    "--glibc-hwcaps-mask",
)


def words_of_linker(command: Sequence[str]) -> int:
    """How many words stand before the program that the linker runs; 0: the command does not begin with a linker."""
    if not command or not _LINKER.fullmatch(command[0]):
        return 0
    n = 1
    while n < len(command) and command[n].startswith("--"):
        n += 2 if command[n] in _WITH_VALUE else 1
    return n if n < len(command) else 0


def words_of_program(command: Sequence[str]) -> Sequence[str]:
    return command[words_of_linker(command) :]
