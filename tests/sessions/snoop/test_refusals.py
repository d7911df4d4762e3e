"""Refused requests: one line each, and the rest goes on."""

import re
import subprocess

import pytest

from memleak_android.host.cli import run
from tests.support.snoop_runs import snoop, snooped_program
from tests.support.workloads import need


@pytest.mark.bpf
def test_what_leads_nowhere_is_said_and_the_rest_goes_on() -> None:
    asked = "nothing some_data never_called printf nolib.so:f * +0x99999999 tail_to libc.so.6:strlen"
    options = [word for name in asked.split() for word in ("-f", name)]
    done = snoop(*options, "--max-matches", 3, command=[snooped_program("shapes.c")])
    assert done.numbers("tail_to") == (3011, 3011, 0)
    said = [line.removeprefix("memleak-android: ") for line in done.err.splitlines()]
    expected = (
        r"nothing: no such function in shapes; name it as `nm -D` does, or by \+0xOFFSET in a stripped file",
        r"some_data: some_data in shapes is data, not a function",
        r"never_called: shapes has no code of its own for it: inlined wherever it is called; probe a function that .*",
        r"printf: shapes calls that of another file; name that file, as in libc.so.6:printf",
        r"nolib.so:f: the command has no file nolib.so \(it has shapes, libc.so.6.*\)",
        r"\*: it matches \d+ functions; allow that by --max-matches \d+",
        r"\+0x99999999: offset 0x99999999 of .*/shapes is not in an executable segment",
        r"libc.so.6:strlen: the address of strlen is chosen at run time \(ifunc\); name one of its .*",
        r"1 of 1 functions probed after .*",
    )
    assert len(said) == len(expected)
    for line, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--pid", "1"], "no function; name one by --function LIB:FUNC or --group FILE"),
        (["-f", "f"], "no target; name one by --pid N, --package APP or -- CMD"),
        (["-f", "f", "--pid", "1", "--", "true"], "both --pid and a command; name one target"),
        (["-f", "f", "--format", "chrome", "--", "true"], "--format and -o belong together; write --format chrome -o FILE"),
        (["-f", "f", "--statistics", "--json", "-", "--", "true"],
         "--statistics shows no call; drop it for --json, --format and --stacks"),
        (["-f", "f", "--filter", "arg9>1", "--", "true"], "'arg9>1': there is no arg9; arg0 to arg5 are read"),
        (["-f", "f", "--follow", "--pid", "1", "--pid", "2"], "--follow with several processes; follow one"),
        (["-f", "f", "--follow", "--stacks", "--", "true"],
         "--follow and --stacks; the mappings of children are unknown, use one of them"),
        (["-f", "f", "--group", "/nothing.toml", "--", "true"], "/nothing.toml cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_usage(words: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = run(["snoop", *words])
    out, err = capfd.readouterr()
    assert (code, out, err) == (2, "", f"memleak-android: error: {line}\n")


def test_a_format_for_no_function(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["snoop", "-f", "main", "--arguments", "mian=int", "--", str(snooped_program("shapes.c"))]
    assert run(words) == 2
    assert capfd.readouterr().err == (
        "memleak-android: error: --arguments mian=… is for no function that was found; write a name as it is shown, or a"
        " glob\n"
    )


def test_nothing_found_at_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["snoop", "-f", "nothing", "--", str(snooped_program("shapes.c"))]) == 4
    assert capfd.readouterr().err == (
        "memleak-android: error: nothing: no such function in shapes; name it as `nm -D` does, or by +0xOFFSET in a"
        " stripped file; name one by --function LIB:FUNCTION\n"
    )


@pytest.mark.bpf
def test_a_process_that_is_not_there_is_said_and_the_others_go_on() -> None:
    need("bpf")
    with subprocess.Popen([snooped_program("waits.c")], stdin=subprocess.PIPE) as target:
        gone = subprocess.Popen(["true"])
        gone.wait()
        done = snoop("--pid", gone.pid, "--pid", target.pid, "-f", "called", "--duration", "100ms")
    assert done.err.splitlines()[0] == f"memleak-android: there is no process {gone.pid}"
    assert done.numbers("called") == (0, 0, 0)
