"""Failures of a session as a user meets them: agents that fail, interrupts, full disks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host import cli
from memleak_android.host.errors import ExitCode
from memleak_android.host.recording.file import FILE_HEADER
from memleak_android.host.wire.blocks import BlockKind, encode_block
from tests.support.attaching import until
from tests.support.builders import blocks as builders
from tests.support.builders.growing_recording import wait_for_block
from tests.support.command_line import CommandLine

PRELOAD = ("--tracer", "preload")
OURS = (*PRELOAD, "--exit-status", "ours")
GOES_ON = "exec sleep 20 >/dev/null 2>&1"  # and holds no end of a pipe that a test reads to its end


@pytest.mark.parametrize(
    ("scenario", "code", "error"),
    [
        ({"error": [5, "could not load the program: EPERM (run as root)"]}, 5, "could not load the program: EPERM; run as root"),
        ({"error": [4, "process 7 ended"]}, 4, "process 7 ended"),
        ({"error": [6, "configuration line not understood: x (report it)"]}, 1, "configuration line not understood: x; report it"),
        ({"error_first": [6, "configuration line not understood: x (report it)"]}, 1, "configuration line not understood: x; report it"),
        ({"hello_version": 9}, 5, "the agent speaks wire version 9, this program 2; build both with `make device`"),
        ({"block_version": 9}, 5, "the agent speaks wire version 9, this program 2; build both with `make device`"),
        ({"die_after": "hello"}, 5, "the agent died: exit code 3; it said: out of memory"),
        ({"die_after": "status"}, 5, "the agent died: exit code 3; run `memleak-android doctor`"),
        ({"garbage": True}, 5, "the agent sent a malformed block (magic is 0x6d676553, not 0x314b4c4d); run `memleak-android doctor`"),
    ],
)  # fmt: skip
def test_no_session(line: CommandLine, scenario: dict[str, Any], code: int, error: str) -> None:
    result = line.run(*PRELOAD, "--", "true", scenario=scenario)
    assert (result.code, result.error, result.out) == (code, error, "")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("-- ./missing", 4, "could not start ./missing: No such file or directory; check the path"),
        ("--pid {0}", 5, "--tracer preload cannot attach to process {0}; start the program with -- CMD"),
        ("-O libjemalloc.so -- true", 5, "-O and --symbols-prefix need the bpf tracer: the shim is found by the functions' own names; run as root"),
    ],
)  # fmt: skip
def test_what_preload_cannot_do(line: CommandLine, words: str, code: int, error: str) -> None:
    result = line.run(*PRELOAD, *words.format(os.getpid()).split())
    assert (result.code, result.error) == (code, error.format(os.getpid()))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["./plain", "a b"], "./plain has no #! line; write -- sh ./plain 'a b'"),
        (["./broken"], "the first line of ./broken names '/no/sh', which cannot be run; correct it, or write -- sh ./broken"),
        (["./windows"], r"the first line of ./windows names '/bin/sh\r', which cannot be run; correct it, or write -- sh ./windows"),
        (["./text"], "./text is not executable; chmod +x ./text"),
        (["plain"], "plain is here and not on PATH; write -- ./plain"),
        (["/"], "/ is a folder; name the program in it"),
        (["sleep 1"], "'sleep 1' is one word with a space; write -- sleep 1 without the quotes, or -- sh -c 'sleep 1'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [[], ["record", "-o", "a.memleak"]], ids=["trace", "record"])
def test_why_a_command_cannot_be_started(
    line: CommandLine, verb: list[str], words: list[str], error: str
) -> None:
    files = {"plain": "echo", "broken": "#!/no/sh -e\n", "windows": "#!/bin/sh\r\necho", "text": "text"}
    for name, content in files.items():
        (line.folder / name).write_text(content, newline="")
        (line.folder / name).chmod(0o644 if name == "text" else 0o755)
    result = line.run(*verb, *PRELOAD, "--", *words)
    assert (result.code, result.error) == (4, error)


def test_agent_that_is_not_there(line: CommandLine) -> None:
    (line.folder / "memleakd").unlink()
    result = line.run(*PRELOAD, "--", "true")
    hint = "memleakd is missing: no memleakd for x86_64; build it with `make device ABIS=x86_64`"
    assert result.code == 5 and result.error.endswith(hint)


def test_agent_that_dies_later_leaves_an_incomplete_report(line: CommandLine) -> None:
    words = (*PRELOAD, *["--interval", "100ms", "--json", "a.json", "--", "sleep", "1"])
    result = line.run(*words, scenario={"die_after": "snapshot"})
    assert result.code == 6
    report = json.loads((line.folder / "a.json").read_text())
    assert report["measurement"] == "incomplete"
    assert report["totals"]["inuse_space"] == 60
    assert any("the agent died: exit code 3" in note for note in report["notes"])


def test_cut_output_of_the_agent_keeps_what_arrived(line: CommandLine) -> None:
    result = line.run("record", "-o", "a.memleak", *PRELOAD, "--", "true", scenario={"cut": True})
    assert result.code == 6
    report = line.run("report", "-v", "a.memleak")
    assert report.code == 6
    assert ", incomplete: " in report.out
    assert "malformed block (cut after" in report.out


def test_long_command_line_reaches_the_agent_unchanged(line: CommandLine) -> None:
    """Neither side waits for the other: the agent writes 1 MiB to stderr first, and 30 MB of evidence."""
    words = ["a b", "ä%0A\n", "\udcff", "x" * 100_000]
    config = line.folder / "config"
    scenario = {"config_file": str(config), "stderr_bytes": 1 << 20, "evidence": 500, "stack_bytes": 60000}
    code = "import sys; sys.exit(len(sys.argv) != 5 or sys.argv[3] != '\\udcff')"
    result = line.run(*PRELOAD, "--json", "-", "--", "python3", "-c", code, *words, scenario=scenario)
    assert "exited with status 0" in result.err
    assert json.loads(result.out)["totals"]["inuse_objects"] == 500
    lines = config.read_text().splitlines()
    assert lines[0] == "wire 2" and lines[4:7] == ["arg a%20b", "arg %C3%A4%250A%0A", "arg %FF"]
    assert "sample_bytes 0" in lines
    assert lines[-1] == "stdio 3 4 5"


def test_losses_and_unattributed_blocks(line: CommandLine) -> None:
    result = line.run(*OURS, "--json", "-", "--", "true", scenario={"unattributed": 2, "lost": {"0": 5}})
    report = json.loads(result.out)
    assert result.code == 6
    assert report["totals"]["unattributed_space"] == 14
    assert report["totals"]["inuse_space"] == 74
    assert report["totals"]["lost"] == {"ring_full": 5}
    assert line.run(*OURS, "--max-lost", "50%", "--", "true", scenario={"unattributed": 2}).code == 0


def test_disk_that_fills_up_while_recording(line: CommandLine) -> None:
    """RLIMIT_FSIZE of 400 KiB stands for the disk."""
    scenario = {"evidence": 20, "stack_bytes": 60000}
    limited = 'ulimit -f 800; exec "$0" -m memleak_android.host record -o a.memleak --exit-status ours --tracer preload -- true'
    argv = ["sh", "-c", limited, sys.executable]
    environment = line.environment(scenario)
    done = subprocess.run(
        argv, cwd=line.folder, env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 6, done.stderr
    report = line.run("report", "a.memleak", "--format", "json")
    assert report.code == 6
    found = json.loads(report.out)
    assert found["totals"]["inuse_objects"] == 20
    assert 0 < found["totals"]["unattributed_objects"] < 20
    assert "a.memleak could not be written on: File too large" in found["notes"]


def test_recording_of_a_killed_session_is_still_good(line: CommandLine) -> None:
    ready = line.folder / "ready"
    words = ("record", "-o", "a.memleak", *PRELOAD, "--", "sh", "-c", f"echo 1 >ready; {GOES_ON}")
    with line.start(*words, scenario={"no_snapshots": True}) as process:
        wait_for(ready)
        wait_for_block(line.folder / "a.memleak", BlockKind.EVIDENCE)
        process.kill()
        process.communicate(timeout=60)
    report = line.run("report", "a.memleak")
    assert report.code == 6
    assert "note: no snapshot of the live table: what is held is not known" in report.out


def test_full_live_table_is_never_fine(line: CommandLine) -> None:
    result = line.run(*OURS, "-v", "--max-lost", "1", "--", "true", scenario={"lost": {"2": 1}})
    assert result.code == 6
    assert "note: the live table was full: 1 blocks are missing in all sums (raise --max-live)" in result.err


def wait_for(path: Path) -> None:
    assert until(lambda: path.exists() and path.read_text() != ""), path


def test_first_interrupt_stops_and_reports(line: CommandLine) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with line.start(*PRELOAD, "-v", "--", "sh", "-c", f"echo 1 >{int(number)}; {GOES_ON}") as process:
            wait_for(line.folder / str(int(number)))
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "60 bytes in 3 allocations" in err


def test_report_into_a_folder_that_is_not_there(line: CommandLine) -> None:
    recording = builders.write_recording(line.folder / "a.memleak", [builders.hello()])
    line.run("report", recording, "-o", "missing/folder/a.txt")
    assert (line.folder / "missing/folder/a.txt").exists()


@pytest.mark.parametrize("option", ["-o", "--json", "--gen-suppressions"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    line: CommandLine, option: str
) -> None:
    """A file in the way, and a folder in which not even root can write."""
    (line.folder / "file").touch()
    for path in ("file/x.json", "/proc/self/x.json", "/proc/none/x.json"):
        result = line.run(*PRELOAD, option, path, "--", "touch", "ran")
        assert result.code == 2 and result.error.startswith(f"could not write {path}: "), path
    assert not (line.folder / "ran").exists()


def test_one_file_that_cannot_be_written_keeps_no_other_from_it(line: CommandLine) -> None:
    """The page is larger than a file may be."""
    words = "-o x.html --json x.json --fail-on-leak 1 --gen-suppressions x.supp --tracer preload -- true"
    argv = ["sh", "-c", f'ulimit -f 100; exec "$0" -m memleak_android.host {words}', sys.executable]
    done = subprocess.run(
        argv,
        cwd=line.folder,
        env=line.environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert "could not write x.html: File too large" in done.stderr.splitlines()[-1]
    assert "FAIL" in done.stderr and json.loads((line.folder / "x.json").read_text())
    assert (line.folder / "x.supp").exists() and not (line.folder / "x.html").exists()


def test_cache_that_cannot_be_a_folder(line: CommandLine) -> None:
    (line.folder / "cache").write_text("a file where a folder belongs")
    result = line.run(*PRELOAD, "--", "true")
    assert result.code == 0
    assert "STILL HELD AT EXIT  true " in result.err


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_bug_of_ours_names_its_file_or_is_shown(
    is_kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no targets\nto divide by")

    monkeypatch.setattr(cli.verbs, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path if is_kept else tmp_path / "missing"))
    assert cli.run(["doctor"]) == 1
    err = capsys.readouterr().err
    said = "memleak-android: error: a bug of memleak-android: ZeroDivisionError: no targets; please report it with"
    if is_kept:
        (kept,) = tmp_path.iterdir()
        assert err == f"{said} {kept}\n"
        assert "ZeroDivisionError: no targets" in kept.read_text()
    else:
        assert err.startswith("Traceback") and err.endswith(f"{said} the lines above\n")


@pytest.mark.parametrize("words", ["report missing.memleak", "--nonsense-option", "-- ./missing"])
def test_verbose_shows_no_traceback_of_a_users_error(line: CommandLine, words: str) -> None:
    result = line.run("-v", *words.split())
    assert result.error and "Traceback" not in result.err


@pytest.mark.parametrize(
    "words", ["report r.memleak", "report r.memleak --format html", "report --help", "--help", "doctor"]
)
def test_a_reader_that_has_enough_ends_it_without_a_word(line: CommandLine, words: str) -> None:
    (line.folder / "r.memleak").write_bytes(FILE_HEADER + encode_block(builders.hello()))
    reader, writer = os.pipe()
    os.close(reader)
    process = line.start(*words.split(), stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60) == (None, "") and process.returncode == ExitCode.BROKEN_PIPE
