"""FIFOs, devices and folders where each verb wants a file: one line with the name, at once, no output, and a failure."""

import os
from pathlib import Path

import pytest

from tests.support.program_server import run_program

INPUTS = {
    "report": ["report", "{}"],
    "diff": ["diff", "{}", "{}"],
    "report --suppressions": ["report", "--suppressions", "{}", "{}"],
    "pairs": ["--pairs", "{}", "--", "true"],
    "snoop --group": ["snoop", "--group", "{}", "--", "true"],
    "unwind --loader": ["unwind", "--loader", "{}", "{}"],
    "unwind": ["unwind", "{}"],
    "a program": ["--", "{}"],
}


@pytest.fixture(params=["fifo", "zeros"])
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    if request.param == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("words", INPUTS.values(), ids=list(INPUTS))
def test_each_is_refused_at_once(words: list[str], irregular: Path, tmp_path: Path) -> None:
    done = run_program([word.format(irregular) for word in words], cwd=tmp_path, timeout_s=60)
    assert done.returncode in (2, 4, 5) and not done.stdout
    (line,) = done.stderr.splitlines()
    assert str(irregular) in line


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".memleak"])
def test_a_fleet_s_source_is_refused_at_once(irregular: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow", reason="the extra `fleet` is not installed")
    source = irregular.rename(tmp_path / f"night{suffix}")
    done = run_program(
        ["fleet", "report", source, "--dataset", tmp_path / "set", "--jobs", "1"], timeout_s=60
    )
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert str(source) in line and "not a regular file" in line


def test_a_fleet_goes_on_without_them(irregular: Path, tmp_path: Path) -> None:
    """One recording that is none must not keep the report of all others."""
    pytest.importorskip("pyarrow", reason="the extra `fleet` is not installed")
    folder = tmp_path / "farm"
    folder.mkdir()
    irregular.rename(folder / "night.memleak")
    done = run_program(
        ["fleet", "report", folder, "--dataset", tmp_path / "set", "--jobs", "1"], timeout_s=100
    )
    assert "night.memleak" in done.stdout + done.stderr and "not a regular file" in done.stdout + done.stderr
