"""`--live` on a terminal: real sessions of the shim, what the screen says beside the report, and how the terminal is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from tests.support.gcc import gcc
from tests.support.live_terminal import ALTERNATE_SCREEN, BACK, Terminal

PROGRAM = (sys.executable, "-P", "-m", "memleak_android.host")
SOURCE = Path(__file__).parents[2] / "support" / "programs" / "steady_leak.c"


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_binary("libmemleak.so", local_arch())
    program = tmp_path_factory.mktemp("program") / "steady_leak"
    gcc("-g", "-O1", "-o", program, SOURCE)
    return program


class Session:
    def __init__(self, folder: Path) -> None:
        self.folder, self.open = folder, list[Terminal]()

    def start(self, *words: object, columns: int = 140, lines: int = 30, **environment: str) -> Terminal:
        own = {"XDG_CACHE_HOME": str(self.folder / "cache"), "TMPDIR": str(self.folder)}
        argv = [*PROGRAM, "--live", *map(str, words)]
        self.open.append(
            Terminal(argv, {**os.environ, **own, **environment}, columns, lines, cwd=self.folder)
        )
        return self.open[-1]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    yield made
    for terminal in made.open:
        terminal.close()


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def blocks_of(function: str, text: str) -> tuple[int, int]:
    """Bytes and blocks in the table's row."""
    found = re.search(rf"^\s*([\d,]+)\s+([\d,]+)\s.*{function}", text, re.MULTILINE)
    assert found, text
    space, objects = (int(one.replace(",", "")) for one in found.groups())
    return space, objects


def test_the_view_agrees_with_the_report(session: Session, leaking: Path, tmp_path: Path) -> None:
    terminal = session.start("--tracer", "preload", "-o", tmp_path / "out", "--", leaking)
    text = terminal.wait_for(lambda text: "leak_one" in text and "renew_one" in text, "the table")
    before = blocks_of("leak_one", text)
    assert before[0] == before[1] * 1009
    terminal.wait_for(lambda text: re.search(r"MB/min|kB/min", text) is not None, "the growth")
    terminal.press("\r")
    terminal.wait_for(lambda text: "the stack is whole" in text and "steady_leak.c:" in text, "the stack")
    terminal.press("\x1b")
    terminal.wait_for(lambda text: "snapshot at" in text, "the table again")
    terminal.press("s")
    terminal.wait_for(lambda text: "saved in" in text, "the report that was saved")
    terminal.press("m")
    terminal.wait_for(lambda text: "the mark's name" in text, "the question")
    terminal.press("page\r")
    terminal.wait_for(lambda text: "mark page: 1" in text, "the mark")
    terminal.press("r")
    terminal.wait_for(lambda text: "stood still for" in text, "what the look cost")
    terminal.wait_for(
        lambda text: re.search("still reach.*leak_one", text) is not None, "what leads to the blocks"
    )
    terminal.press("o")
    terminal.wait_for(lambda text: "\\x1b]0;owned\\x07round 100" in text, "the command's output, escaped")
    terminal.press("\x1b")
    terminal.wait_for(lambda text: "snapshot at" in text, "the table once more")
    terminal.press("q")
    assert terminal.end() == 0
    at_end, (saved,) = report(tmp_path / "out"), (tmp_path / "out").glob("live-*")
    for one in (at_end, report(saved)):
        leak = next(site for site in one["sites"] if site["frames"][1]["function"] == "leak_one")
        assert leak["inuse_space"] == leak["inuse_objects"] * 1009 and leak["inuse_objects"] >= before[1]
        assert one["totals"]["inuse_space"] == sum(site["inuse_space"] for site in one["sites"])
    assert at_end["growth"]["instants"] >= 5 and (saved / "report.html").stat().st_size > 100_000
    assert at_end["timeline"], "the view's messages are the report's timeline"
    assert b"\x1b]0;owned" not in terminal.raw
    assert b"round 0" in (tmp_path / "out" / "output.txt").read_bytes()
    assert "the output of the command is in" in terminal.raw.decode().replace("\r\n", "")
    assert terminal.raw.count(ALTERNATE_SCREEN) == terminal.raw.count(BACK) == 1
    assert terminal.modes == terminal.modes_before


def test_the_last_row_of_a_command_that_ends_is_the_reports(
    session: Session, leaking: Path, tmp_path: Path
) -> None:
    terminal = session.start(
        "--tracer", "preload", "-o", tmp_path / "out", "--fail-on-leak", "1K", "--", leaking, 300
    )
    terminal.wait_for(lambda text: "leak_one" in text, "the table")
    assert terminal.end() == 23  # as without --live
    leak = next(
        site for site in report(tmp_path / "out")["sites"] if site["frames"][1]["function"] == "leak_one"
    )
    assert (leak["inuse_space"], leak["inuse_objects"]) == (300 * 1009, 300)


def test_a_narrow_terminal_without_colour_that_is_resized(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking, columns=40, lines=12, NO_COLOR="1")
    terminal.wait_for(lambda text: "leak_one" in text, "the table")
    terminal.resize(140, 30)
    terminal.wait_for(lambda text: "where" in text and "steady_leak.c:" in text, "all columns")
    terminal.press("\x03")  # a key, while the terminal is raw
    assert terminal.end() == 0
    drawn = terminal.raw.partition(BACK)[0]
    assert not re.search(rb"\x1b\[[\d;]*(38|48);", drawn)


def test_a_signal_ends_it_as_a_key_does(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking)
    terminal.wait_for(lambda text: "leak_one" in text, "the table")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 0 and "leak_one" in terminal.raw.partition(BACK)[2].decode()


def children_of(pid: int) -> dict[int, str]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
        except OSError:
            continue
    return found


def test_measuring_goes_on_when_the_view_is_killed(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking)
    terminal.wait_for(lambda text: "leak_one" in text, "the table")
    (view,) = [
        pid
        for pid, words in children_of(terminal.process.pid).items()
        if "memleak_android.host.live" in words
    ]
    os.kill(view, signal.SIGKILL)
    terminal.wait_for(lambda text: "the view is gone; measuring goes on" in text, "what is said of it")
    assert terminal.modes == terminal.modes_before
    terminal.press("\x03")  # the terminal makes a signal of it again
    assert terminal.end() == 0 and b"leak_one" in terminal.raw


def test_the_terminal_is_put_back_when_the_session_is_killed(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking, 1000)
    terminal.wait_for(lambda text: "leak_one" in text, "the table")
    terminal.process.kill()
    terminal.wait_for(lambda text: BACK in terminal.raw, "the other screen")
    assert terminal.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (("--count", "3", "--interval", "1s"), {}, "--live and --count"),
        (("-q",), {}, "--live and --quiet"),
        (("--trace",), {}, "--live and --trace"),
        ((), {"TERM": "dumb"}, "--live draws on a terminal, and standard error is not one"),
    ],
)
def test_refusals_are_one_line(
    session: Session, words: tuple[str, ...], environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    if environment:
        done = subprocess.run(
            [*PROGRAM, "--live", *words, "--", "true"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        code, text = done.returncode, done.stderr
        assert text.count("\n") == 1 and "use --interval 5s" in text
    else:
        terminal = session.start(*words, "--", "true")
        code, text = terminal.end(), terminal.text
    assert code == 2 and expected in text.replace("\n", "")


def test_without_textual_the_install_command_is_shown(tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules['textual'] = None; from memleak_android.host.cli import run; sys.exit(run({['--live', '--', 'true']!r}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", hidden], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pip install 'memleak-android[live]'" in done.stderr
