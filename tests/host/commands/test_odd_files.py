"""Inputs, outputs and streams that are no regular files, are another user's, closed or full: one line with the name, at once."""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import blocks as builders
from tests.support.builders.second_user import (
    UID,
    as_second_user,
    needs_second_user,
    open_to_all,
)
from tests.support.command_line import CommandLine
from tests.support.program_server import run_program
from tests.support.workloads import need

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


PROGRAM = f"exec {sys.executable} -m memleak_android.host -q --tracer bpf"
ASKED = "-- sh -c 'ulimit -Sn >limit'"


def run(limit: str, folder: Path, *before: str, option: str = "") -> subprocess.CompletedProcess[str]:
    need("bpf")
    argv = [*before, "sh", "-c", f"ulimit {limit} && {PROGRAM} {option} {ASKED}"]
    return subprocess.run(argv, cwd=folder, text=True, capture_output=True, check=False)


@pytest.mark.bpf
def test_a_soft_limit_is_that_of_the_command_alone(tmp_path: Path) -> None:
    done = run("-Sn 64", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "limit").read_text() == "64\n"


@pytest.mark.bpf
@pytest.mark.parametrize(("allowed", "option"), [(64, "--without-multi"), (40, "")])
def test_a_hard_limit_is_named(tmp_path: Path, allowed: int, option: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives up the right to raise its limits")
    less_right = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
    done = run(f"-n {allowed}", tmp_path, *less_right, option=option)
    assert done.returncode == 5
    last = done.stderr.splitlines()[-1]
    assert last.startswith("memleak-android: error: could not ")
    assert last.endswith("; allow more open files: ulimit -n")


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
