"""The program of a command that begins with the dynamic linker."""

import pytest

from memleak_android.host.machine.linker_command import words_of_program

GLIBC, MUSL = "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"


@pytest.mark.parametrize(
    ("before", "program"),
    [
        ([GLIBC], ["./server", "--port", "80"]),
        ([GLIBC, "--library-path", "/a:/b", "--inhibit-cache", "--argv0", "x"], ["./server"]),
        ([MUSL, "--library-path=/a", "--"], ["./server", "-v"]),
        (["/system/bin/linker64"], ["/data/server"]),
        (["ld-linux-aarch64.so.1", "--preload", "a.so"], ["./server"]),
        ([], ["./ld-linux", "x"]),
        ([], ["./linker", "x"]),
        ([], [GLIBC, "--version"]),
        ([], [GLIBC]),
        ([], []),
    ],
)
def test_words_of_the_program(before: list[str], program: list[str]) -> None:
    assert words_of_program([*before, *program]) == program
