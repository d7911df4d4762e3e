"""`--live` on a terminal: real sessions of the shim, what the screen says beside the report, and how the terminal is left."""

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
from tests.support.attaching import children_of
from tests.support.fakes.adbd import FakeDevice
from tests.support.gcc import gcc
from tests.support.live_terminal import BACK, Terminal

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


def leak_of(found: dict[str, Any]) -> tuple[int, int]:
    """Bytes and blocks of leak_one in a report."""
    (leak,) = (site for site in found["sites"] if site["frames"][1]["function"] == "leak_one")
    return leak["inuse_space"], leak["inuse_objects"]


def shown(text: str) -> tuple[int, int]:
    """The same in the table."""
    found = re.search(r"^\s*([\d,]+)\s+([\d,]+)\s.*leak_one", text, re.MULTILINE)
    space, objects = (int(one.replace(",", "")) for one in found.groups()) if found else (0, 0)
    return space, objects


STEPS = (
    ("\r", lambda text: "the stack is whole" in text and "steady_leak.c:" in text),
    ("\x1b", "snapshot at"),
    ("s", "saved in"),
    ("m", "the mark's name"),
    ("page\r", "mark page: 1"),
    ("r", "stood still for"),
    ("", lambda text: re.search("still reach.*leak_one", text) is not None),
    ("o", "\\x1b]0;owned\\x07round 100"),  # the command's output, escaped
    ("\x1b", "snapshot at"),
)


@pytest.mark.proof
def test_the_view_agrees_with_the_report(session: Session, leaking: Path, tmp_path: Path) -> None:
    terminal = session.start("--tracer", "preload", "-o", tmp_path / "out", "--", leaking)
    before = shown(terminal.wait_for(lambda text: "leak_one" in text and "renew_one" in text, "the table"))
    assert before[0] == before[1] * 1009 > 0
    terminal.wait_for("LEAKING", "the answer")
    for keys, then in STEPS:
        terminal.press(keys)
        terminal.wait_for(then)
    terminal.press("q")
    assert terminal.end() == 0
    at_end, (saved,) = report(tmp_path / "out"), (tmp_path / "out").glob("live-*")
    for one in (at_end, report(saved)):
        space, objects = leak_of(one)
        assert space == objects * 1009 and objects >= before[1]
        assert one["totals"]["inuse_space"] == sum(site["inuse_space"] for site in one["sites"])
    assert at_end["growth_span"]["instants"] >= 5 and (saved / "report.html").stat().st_size > 100_000
    assert at_end["timeline"], "the view's messages are the report's timeline"
    assert b"\x1b]0;owned" not in terminal.raw
    assert b"round 0" in (tmp_path / "out" / "output.txt").read_bytes()
    assert "the output of the command is in" in terminal.raw.decode().replace("\r\n", "")
    terminal.assert_put_back()


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_view_of_a_device(session: Session, device: FakeDevice, tmp_path: Path, is_cut: bool) -> None:
    """This machine behind adb, without root. A cable that is pulled ends it with the report of what came."""
    device.add_program("id", "echo 2000")
    gcc("-g", "-O1", "-o", device.folder / "steady_leak", SOURCE)
    terminal = session.start("-s", device.serial, "-o", tmp_path / "out", "--", device.folder / "steady_leak")
    before = shown(terminal.wait_for(lambda text: shown(text) > (0, 0), "the table"))
    after = shown(terminal.wait_for(lambda text: shown(text) > before, "a later snapshot"))
    assert device.serial in terminal.text and "preload" in terminal.text
    if is_cut:
        device.cut()
    else:
        terminal.press("q")
    assert terminal.end() == (6 if is_cut else 0)
    found = report(tmp_path / "out")
    space, objects = leak_of(found)
    assert space == objects * 1009 >= (before if is_cut else after)[0]
    assert ("was cut" in " ".join(found["notes"])) == (found["measurement"] == "incomplete") == is_cut
    assert b"round 0" in (tmp_path / "out" / "output.txt").read_bytes()
    terminal.assert_put_back()
    assert device.left() == []


def test_the_last_row_of_a_command_that_ends_is_the_reports(
    session: Session, leaking: Path, tmp_path: Path
) -> None:
    options = ("-o", tmp_path / "out", "--fail-on-leak", "1K")
    terminal = session.start("--tracer", "preload", *options, "--", leaking, 300)
    terminal.wait_for("leak_one")
    assert terminal.end() == 23  # as without --live
    assert leak_of(report(tmp_path / "out")) == (300 * 1009, 300)


COLOURS = {*range(30, 39), *range(40, 49), *range(90, 108)}


def colours(terminal: Terminal) -> set[int]:
    """The codes of all that the view has drawn."""
    drawn = re.findall(rb"\x1b\[([\d;]*)m", terminal.raw.partition(BACK)[0])
    return {int(code or 0) for one in drawn for code in one.split(b";")}


def test_a_narrow_terminal_without_colour_that_is_resized(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking, columns=40, lines=12, NO_COLOR="1")
    terminal.wait_for("leak_one")
    terminal.resize(140, 30)
    terminal.wait_for(lambda text: "where" in text and "steady_leak.c:" in text, "all columns")
    terminal.press("\x03")  # a key, while the terminal is raw
    assert terminal.end() == 0
    codes = colours(terminal)
    assert not codes & COLOURS and 7 in codes, "the cursor is still seen, in reverse"


def test_a_signal_ends_it_as_a_key_does(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking)
    terminal.wait_for("leak_one")
    assert colours(terminal) & COLOURS
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 0 and "leak_one" in terminal.raw.partition(BACK)[2].decode()


def test_measuring_goes_on_when_the_view_is_killed(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking)
    terminal.wait_for("leak_one")
    children = children_of(terminal.process.pid).items()
    (view,) = [pid for pid, words in children if "memleak_android.host.live" in words]
    os.kill(view, signal.SIGKILL)
    terminal.wait_for("the view is gone; measuring goes on")
    assert terminal.modes == terminal.modes_before
    terminal.press("\x03")  # the terminal makes a signal of it again
    assert terminal.end() == 0 and b"leak_one" in terminal.raw


def test_the_terminal_is_put_back_when_the_session_is_killed(session: Session, leaking: Path) -> None:
    terminal = session.start("--tracer", "preload", "--", leaking, 1000)
    terminal.wait_for("leak_one")
    terminal.process.kill()
    terminal.wait_for(lambda text: BACK in terminal.raw, "the other screen")
    assert terminal.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--count", "3", "--interval", "1s"), "--live and --count"),
        (("-q",), "--live and --quiet"),
        (("--trace",), "--live and --trace"),
    ],
)
def test_options_that_the_view_does_not_go_with(
    session: Session, words: tuple[str, ...], expected: str
) -> None:
    terminal = session.start(*words, "--", "true")
    assert terminal.end() == 2 and expected in terminal.text.replace("\n", "")


@pytest.mark.parametrize(("kind", "said"), [("dumb", "TERM is dumb"), ("", "TERM is not set")])
def test_a_terminal_that_cannot_be_drawn_on_is_named(session: Session, kind: str, said: str) -> None:
    argv = ["env", f"TERM={kind}", *PROGRAM, "--live", "--", "true"]
    terminal = Terminal(argv, os.environ, 140, cwd=session.folder)
    session.open.append(terminal)
    assert terminal.end() == 2 and said in terminal.text


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("", "--live draws on a terminal, and standard error is not one; use --interval 5s"),
        ("sys.modules['textual'] = None", "pip install 'memleak-android[live]'"),
    ],
)
def test_where_there_can_be_no_view(tmp_path: Path, before: str, line: str) -> None:
    words = ["--live", "--", "true"]
    code = f"import sys; {before}\nfrom memleak_android.host.cli import run; sys.exit(run({words!r}))"
    argv = [sys.executable, "-P", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and line in done.stderr
