"""Closed standard streams (`>&-`, a daemon): no file of ours may take their numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import blocks as builders

FORMS = ("<&-", ">&-", "2>&-")


def run_closed(how: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with the shell's redirections `how`."""
    argv = ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m", "memleak_android.host", *words]
    return subprocess.run(
        argv, cwd=folder, text=True, stdin=subprocess.PIPE, capture_output=True, check=False
    )


@pytest.mark.parametrize("how", [*FORMS, " ".join(FORMS)])
def test_a_command_writes_into_no_file_of_ours(tmp_path: Path, how: str) -> None:
    command = (
        "cat; printf '%s-%s' its output; printf '%s-%s' its error >&2; "
        "for n in 0 1 2; do readlink /proc/$$/fd/$n; done >links"
    )
    done = run_closed(how, tmp_path, "-q", "--tracer", "preload", "-o", "result", "--", "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result" / "report.json").read_text())["target"]
    assert b"its-" not in (tmp_path / "result" / "recording.memleak").read_bytes()
    stdin, _, stderr = (tmp_path / "links").read_text().splitlines()  # 1 is that of the loop: links itself
    assert (stdin == "/dev/null") == ("<&-" in how.split())
    assert (stderr == "/dev/null") == ("2>&-" in how.split())


def test_a_report_to_a_closed_stdout_is_not_a_failure(tmp_path: Path) -> None:
    builders.write_recording(tmp_path / "a.memleak", [builders.hello()])
    seen = run_closed("", tmp_path, "report", "a.memleak")
    unseen = run_closed(">&-", tmp_path, "report", "a.memleak")
    assert seen.stdout
    assert (unseen.returncode, unseen.stderr) == (seen.returncode, seen.stderr)
