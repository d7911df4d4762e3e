"""Outputs of every verb where a second user, a device or a FIFO is in the way."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import blocks as builders
from tests.support.builders.second_user import (
    UID,
    as_second_user,
    needs_second_user,
    null_device,
    open_to_all,
)
from tests.support.command_line import CommandLine

MEASURED = ("-q", "--force", "--")
VERBS = [
    ("report", "a.memleak", "--force", "--format", "json", "-o", "OUT"),
    ("diff", "a.memleak", "a.memleak", "--force", "--format", "json", "-o", "OUT"),
    ("--json", "OUT", *MEASURED, "true"),
    ("--gen-suppressions", "OUT", *MEASURED, "true"),
    ("record", "-o", "OUT", *MEASURED, "true"),
]
every_verb = pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0].strip("-"))


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    builders.write_recording(tmp_path / "a.memleak", [builders.hello()])
    return CommandLine(tmp_path)


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_to_all() as folder:
        yield folder


def to(out: Path, words: tuple[str, ...]) -> list[str]:
    return [word.replace("OUT", str(out)) for word in words]


@needs_second_user
@every_verb
def test_a_planted_link(line: CommandLine, shared: Path, words: tuple[str, ...]) -> None:
    victim = line.folder / "victim"
    victim.write_text("victim")
    as_second_user(lambda: os.symlink(victim, shared / "out"))
    done = line.run(*to(shared / "out", words))
    assert done.code == 2
    assert "out belongs to" in done.err and "use another folder" in done.err.splitlines()[-1]
    assert victim.read_text() == "victim" and os.listdir(shared) == ["out"]


@needs_second_user
@pytest.mark.parametrize("words", [("-o", "OUT", *MEASURED, "true")])
def test_a_folder_of_another_user(line: CommandLine, shared: Path, words: tuple[str, ...]) -> None:
    as_second_user(lambda: os.mkdir(shared / "out", 0o777))
    done = line.run(*to(shared / "out", words))
    assert done.code == 2 and f"SUDO_UID={UID}" in done.err
    assert not os.listdir(shared / "out")


@needs_second_user
@every_verb
def test_a_device_stays_a_device(line: CommandLine, words: tuple[str, ...]) -> None:
    null = null_device(line.folder)
    done = line.run(*to(null, words))
    assert done.code in (0, 6), done.err
    assert stat.S_ISCHR(null.stat().st_mode)


@every_verb
def test_a_fifo_gets_the_whole_output(line: CommandLine, words: tuple[str, ...]) -> None:
    """Without --force: nothing is overwritten."""
    fifo, found = line.folder / "fifo", list[bytes]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()), daemon=True)
    reader.start()
    done = line.run(*(word for word in to(fifo, words) if word != "--force"))
    reader.join()
    assert done.code in (0, 6), done.err
    assert found[0] or "--gen-suppressions" in words  # nothing to suppress
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_stdout_by_its_name(line: CommandLine) -> None:
    done = line.run("report", "a.memleak", "--format", "json", "-o", "/dev/stdout")
    assert done.out.startswith("{"), done.err


def test_a_recording_replaces_a_name_and_not_the_file_behind_it(line: CommandLine) -> None:
    victim = line.folder / "victim"
    victim.write_text("victim")
    os.link(victim, line.folder / "out")
    done = line.run("record", "-o", "out", *MEASURED, "true")
    assert done.code in (0, 6) and victim.read_text() == "victim"
    assert (line.folder / "out").read_bytes().startswith(b"MEMLEAK\0")
