"""Full standard output or standard error: /dev/full stands for a log on a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memleak_android.host import cli
from tests.support.builders import blocks as builders
from tests.support.command_line import CommandLine

FULL = Path("/dev/full")
NO_ROOM = (
    "memleak-android: error: could not write the output: No space left on device; "
    "free space, or write to another disk"
)
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


def run_full(stream: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = CommandLine(folder).environment({})
    environment.pop("PYTHONUNBUFFERED", None)  # else nothing is left to be flushed at the exit
    with FULL.open("w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: full}
        return subprocess.run(
            [sys.executable, "-m", "memleak_android.host", *words],
            cwd=folder,
            env=environment,
            text=True,
            check=False,
            **streams,
        )


@pytest.mark.parametrize("words", [("report", "a.memleak"), ("--help",), ("--version",)])
def test_a_full_disk_behind_stdout_is_not_a_bug(tmp_path: Path, words: tuple[str, ...]) -> None:
    builders.write_recording(tmp_path / "a.memleak", [builders.hello()])
    done = run_full("stdout", tmp_path, *words)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (6, NO_ROOM)


def test_the_files_are_written_all_the_same(tmp_path: Path) -> None:
    done = run_full("stdout", tmp_path, "-q", "--tracer", "preload", "-o", "result", "--", "true")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (6, NO_ROOM)
    assert {file.name for file in (tmp_path / "result").iterdir()} == {
        "recording.memleak",
        "report.json",
        "report.txt",
    }


def test_progress_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    done = run_full("stderr", tmp_path, "--tracer", "preload", "--", "true")
    assert done.returncode == 0
    assert "outstanding" in done.stdout


def test_a_bug_of_ours_is_shown_where_no_file_takes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no targets")

    monkeypatch.setattr(cli.verbs, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert cli.run(["doctor"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith(
        "memleak-android: error: a bug of memleak-android: ZeroDivisionError: no targets; "
        "please report it with the lines above\n"
    )
