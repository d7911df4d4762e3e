"""Standard streams that are closed (`>&-`, a daemon) or full: /dev/full stands for a log on a full disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import blocks as builders
from tests.support.command_line import CommandLine

FORMS = ("<&-", ">&-", "2>&-")
NO_ROOM = (
    "memleak-android: error: could not write the output: No space left on device; "
    "free space, or write to another disk"
)
WORDS = ("-q", "--tracer", "preload", "-o", "result", "--")


@pytest.fixture(autouse=True)
def recording(tmp_path: Path) -> Path:
    return builders.write_recording(tmp_path / "a.memleak", [builders.hello()])


def run_redirected(
    how: str, folder: Path, *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the program with the shell's redirections `how`."""
    argv = ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m", "memleak_android.host", *words]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(argv, cwd=folder, env=environment, text=True, check=False, **streams)


@pytest.mark.parametrize("how", [*FORMS, " ".join(FORMS)])
def test_a_command_writes_into_no_file_of_ours(tmp_path: Path, how: str) -> None:
    command = (
        "cat; printf '%s-%s' its output; printf '%s-%s' its error >&2; "
        "for n in 0 1 2; do readlink /proc/$$/fd/$n; done >links"
    )
    done = run_redirected(how, tmp_path, *WORDS, "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result" / "report.json").read_text())["target"]
    assert b"its-" not in (tmp_path / "result" / "recording.memleak").read_bytes()
    stdin, _, stderr = (tmp_path / "links").read_text().splitlines()  # 1 is that of the loop: links itself
    assert (stdin == "/dev/null") == ("<&-" in how.split())
    assert (stderr == "/dev/null") == ("2>&-" in how.split())


def test_a_report_to_a_closed_stdout_is_not_a_failure(tmp_path: Path) -> None:
    seen, unseen = (run_redirected(how, tmp_path, "report", "a.memleak") for how in ("", ">&-"))
    assert seen.stdout
    assert (unseen.returncode, unseen.stderr) == (seen.returncode, seen.stderr)


def run_full(how: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    environment = CommandLine(folder).environment({})
    environment.pop("PYTHONUNBUFFERED", None)  # else nothing is left to be flushed at the exit
    return run_redirected(f"{how}/dev/full", folder, *words, environment=environment)


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("report", "a.memleak"), set()),
        (("--help",), set()),
        (("--version",), set()),
        ((*WORDS[:-1], "--json", "-", "--", "true"), {"recording.memleak", "report.json", "report.txt"}),
    ],
)
def test_a_full_disk_behind_stdout_is_not_a_bug(
    tmp_path: Path, words: tuple[str, ...], files: set[str]
) -> None:
    """The files are written all the same."""
    done = run_full(">", tmp_path, *words)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (6, NO_ROOM)
    assert {file.name for file in (tmp_path / "result").glob("*")} == files


def test_progress_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    done = run_full("2>", tmp_path, "--unwind", "fp", "--tracer", "preload", "--json", "-", "--", "true")
    assert done.returncode == 0
    assert "inuse_space" in done.stdout
