"""The command line as a user meets it: lines, exit codes, files. The agent is tests/support/fakes/agent.py."""

import json
import os
import re
import stat

import pytest

from memleak_android.host.cli import VERBS
from memleak_android.host.recording.file import Recording
from memleak_android.host.wire.blocks import BlockKind
from tests.support.command_line import CommandLine

PRELOAD = ("--tracer", "preload")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", "no target; name one by --pid N, --package APP or -- CMD, or try `memleak-android demo`"),
        ("--", "no command behind --; write -- CMD and its arguments"),
        ("--pid 1 -- ls", "both --pid and a command; name one target"),
        ("trace", "no target; name one by --pid N, --package APP, --all or -- CMD"),
        (
            "attach",
            "unknown verb: attach (expected demo, devices, diff, doctor, fleet, mark, record, report, sdk, snoop, trace, unwind); to run a command write -- attach",
        ),
        ("-p 4711", "-p 4711 is memleak's; use --pid 4711"),
        ("-p4711", "-p 4711 is memleak's; use --pid 4711"),
        ("trace -p 4711", "-p 4711 is memleak's; use --pid 4711"),
        ("--pid 1 -o 500", "-o 500 is memleak's; use --older 500ms (or -o ./500 for a folder of that name)"),
        ("-s 10", "-s 10 is memleak's; use --sample-bytes, which takes bytes (or --serial 10 for a device of that name)"),
        ("-t --pid 1", "-t is memleak's; use --trace"),
        ("5 3", "interval 5 without its option; use --interval 5s --count 3"),
        ("5", "5 without its option; use --pid 5, or --interval 5s"),
        ("repotr x", "unknown verb: repotr; did you mean report?"),
        ("dif a b", "unknown verb: dif; did you mean diff?"),
        ("sh x.sh a", "sh is not a verb; to run it: memleak-android -- sh x.sh a"),
        ("./memleakd *", "./memleakd is not a verb; to run it: memleak-android -- ./memleakd '*'"),
        ("help attach", "no such command 'attach'; see `memleak-android --help`"),
        ("--leak-check=full ./x", "--leak-check is valgrind's; use --reachability"),
        ("--pid 1 --record-only", "--record-only is heaptrack's; use `memleak-android record -o FILE.memleak -- CMD`"),
        ("--pid 1 --older 5x", "invalid value for '--older': '5x' is not a duration (write 500ms, 5s or 1m30s); see `memleak-android --help`"),
        ("--pid 1 -z 5Q", "invalid value for '-z' / '--min-size': '5Q' is not a size (write 4096, 64K or 1MiB); see `memleak-android --help`"),
        ("--pid 1 --fail-on-leak 5,x", "invalid value for '--fail-on-leak': '5,x' is not a limit (write 64K or 64K,100); see `memleak-android --help`"),
        ("--pid 1 --max-lost 2", "invalid value for '--max-lost': '2' is not a share (write 0.1% or 0.001); see `memleak-android --help`"),
        ("--symbols none -- true", "invalid value for '--symbols': Path 'none' does not exist; see `memleak-android --help`"),
        ("--pid 12a --live", "invalid value for '--pid': '12a' is not a process number (write one, as `pgrep NAME` prints it); see `memleak-android --help`"),
        ("--pid sshd --live", "invalid value for '--pid': 'sshd' is not a process number (write one, as `pgrep sshd` prints it); see `memleak-android --help`"),
        ("--pid 1,2 --live", "invalid value for '--pid': '1,2' is not a process number (write one, as `pgrep NAME` prints it); see `memleak-android --help`"),
        ("--pid 0 --live", "invalid value for '--pid': '0' is not a process number (write one, as `pgrep NAME` prints it); see `memleak-android --help`"),
        ("--pid 1 --pid 2", "2 times --pid; measure one, its children too by --follow, or every process by --all"),
        ("--pid 1 --interval 0", "invalid value for '--interval': '0' is not a time to wait (write 500ms, 5s or 1m30s); see `memleak-android --help`"),
        ("--pid 1 --duration 0ms", "invalid value for '--duration': '0ms' is not a time to wait (write 500ms, 5s or 1m30s); see `memleak-android --help`"),
        ("--pid 1 -z 2 -Z 1", "-z 2 and -Z 1 leave no size; exchange them"),
        ("--pid 1 --repeat 3", "--repeat without --scenario; name what is repeated by --scenario CMD"),
        ("--out x -- true", "--out is not an option; use -o"),
        ("report x.memleak --output=x", "--output is not an option; use -o"),
        ("report x.memleak -f json", "-f is not an option; use --format"),
        ("--trace bpf -- true", "--trace takes no value; use --tracer bpf"),
        ("--pid 1 --count 3", "--count without --interval; say how often by --interval T"),
        ("-o - -- true", "- is not a file; use --json - or --format NAME for standard output, or name a file"),
        ("report x.memleak -o -", "- is not a file; use --json - or --format NAME for standard output, or name a file"),
        ("-o x.pdf -- true", "invalid value for '-o': no format has the ending .pdf (expected .txt, .json, .pb.gz, .folded, .speedscope.json, .heaptrack.gz, .perfetto-trace, .html, .sarif, .junit.xml, .memleak); for a folder write x.pdf/"),
        ("-o x.html/ -- true", "invalid value for '-o': x.html/ ends like a file; name the folder otherwise"),
        ("report -", "invalid value for 'FILE': only files are read, not standard input; write it to one first"),
        ("report missing.memleak", "cannot read missing.memleak: No such file or directory; name a .memleak file"),
        ("report x.memleak -- ls", "`report` takes no command; write memleak-android -- CMD to trace one"),
    ],
)  # fmt: skip
def test_usage_errors_are_one_line_and_exit_2(line: CommandLine, words: str, error: str) -> None:
    result = line.run(*words.split())
    assert (result.code, result.out) == (2, "")
    assert result.err == f"memleak-android: error: {error}\n"


def test_version_and_help(line: CommandLine) -> None:
    for words in ("--version", "-V", "version"):
        assert line.run(words).out.startswith("memleak-android 0."), words
    text = line.run("--help").out
    assert line.run("-h").out == line.run("help").out == text
    assert line.run("help", "record").out == line.run("record", "--help").out
    for word in ("--pid", "--interval", "--fail-on-leak", "record", "report", "doctor", "demo", "-- CMD"):
        assert word in text
    lines = text.splitlines()
    assert len(lines) <= 21 and max(map(len, lines)) <= 120
    everything = line.run("--help-all").out
    for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", text):
        assert option in everything or option in ("--help", "--help-all", "--port"), option
    assert all(verb in text for verb in VERBS if verb != "trace")


def test_fleet_alone_gets_its_help(line: CommandLine) -> None:
    result = line.run("fleet")
    assert (result.code, result.err) == (2, line.run("fleet", "--help").out)


@pytest.mark.parametrize("words", ["record", "fleet report", ""])
def test_the_help_of_the_verb_is_named(line: CommandLine, words: str) -> None:
    result = line.run(*words.split(), "--pid", "1", "--nonsense-option")
    assert result.code == 2
    assert result.err.endswith(f"see `{' '.join(['memleak-android', *words.split(), '--help'])}`\n")


def test_trace_of_a_command(line: CommandLine) -> None:
    result = line.run(*PRELOAD, "--", "sh", "-c", "echo its own words; exit 3")
    assert (result.code, result.out) == (3, "its own words\n")
    said, answer = result.err.splitlines()[:2]
    assert said == "memleak-android: sh exited with status 3"
    assert answer.startswith(
        "STILL HELD AT EXIT  sh -c 'echo its own words; exit 3' holds 60 B in 3 blocks from "
    )
    assert os.listdir(line.folder / "cache/memleak-android/spool") == []


def test_signal_that_killed_the_command_is_reported(line: CommandLine) -> None:
    result = line.run(*PRELOAD, "--", "sh", "-c", "kill -9 $$")
    assert result.err.startswith("memleak-android: sh was killed by signal 9\n") and result.code == 137


@pytest.mark.parametrize("words", [["--json", "-"], ["--json"], ["--json", "-o", "x.memleak"]])
def test_json_on_stdout_is_only_json(words: list[str], line: CommandLine) -> None:
    result = line.run(*PRELOAD, *words, "--", "true")
    report = json.loads(result.out)
    assert [site["inuse_space"] for site in report["sites"]] == [30, 20, 10]
    assert report["totals"]["inuse_space"] == report["sites"][0]["alloc_space"] == 60
    assert (report["target"]["command"], report["target"]["exit_status"]) == ("true", 0)


@pytest.mark.parametrize("words", ["--json -", "--format json", "--json - --trace --interval 1s"])
def test_no_output_of_the_command_is_in_the_report(line: CommandLine, words: str) -> None:
    result = line.run(*PRELOAD, *words.split(), "--", "sh", "-c", "echo its own words")
    assert json.loads(result.out)["totals"]["inuse_space"] == 60
    assert result.err.startswith("memleak-android: the output of the command goes to standard error")
    assert "\nits own words\n" in result.err


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("x.html", b"<!doctype html>"),
        ("x.json", b'{\n "schema":'),
        ("x.json.gz", b"\x1f\x8b"),
        ("x.pb.gz", b"\x1f\x8b"),
        ("x.speedscope.json", b'{"$schema":'),
        ("x.txt", b"STILL HELD AT EXIT"),
        ("x.memleak", b"MEMLEAK"),
    ],
)
def test_the_name_of_a_file_says_what_it_gets(line: CommandLine, name: str, begin: bytes) -> None:
    """As a session's only file, and of a report."""
    before = os.listdir(line.folder)
    result = line.run(*PRELOAD, "-o", name, "--", "true")
    assert result.code == 0 and set(os.listdir(line.folder)) - {*before, "cache"} == {name}, result.err
    written = (line.folder / name).read_bytes()
    assert written[: len(begin)].lower() == begin.lower(), written[:40]
    assert line.run(*PRELOAD, "-o", name, "--", "true").code == 2, "it exists"
    if name != "x.memleak":
        assert line.run(*PRELOAD, "-o", "r.memleak", "--", "true").code == 0
        assert line.run("report", "r.memleak", "-o", name, "--force").code == 0
        assert (line.folder / name).read_bytes()[: len(begin)].lower() == begin.lower()


def test_a_format_that_is_named_is_that_of_the_file(line: CommandLine) -> None:
    assert line.run(*PRELOAD, "-o", "x.json", "--format", "sarif", "--", "true").code == 0
    assert "sarif" in json.loads((line.folder / "x.json").read_text())["$schema"]


@pytest.mark.parametrize(("name", "formats"), [("x.html", "json sarif"), ("x.memleak", "json")])
def test_several_formats_need_a_folder(name: str, formats: str, line: CommandLine) -> None:
    words = [word for each in formats.split() for word in ("--format", each)]
    result = line.run(*PRELOAD, "-o", name, *words, "--", "true")
    assert result.code == 2 and f"{name} is one file" in result.err


@pytest.mark.parametrize("name", ["out", "old.csv", "new.csv/", "v1.2"])
def test_names_of_folders(line: CommandLine, name: str) -> None:
    """One with the ending of a file is there, or its name ends in a slash."""
    (line.folder / "old.csv").mkdir()
    assert line.run(*PRELOAD, "-o", name, "--", "true").code == 0
    assert (line.folder / name / "report.json").exists()


def test_folder_of_results(line: CommandLine) -> None:
    result = line.run(*PRELOAD, "-o", "out", "--", "true")
    assert result.code == 0
    assert sorted(os.listdir(line.folder / "out")) == ["recording.memleak", "report.json", "report.txt"]
    assert "wrote out/report.txt" in result.err
    text = (line.folder / "out/report.txt").read_text()
    assert text.splitlines()[0] in result.err and "outstanding    60 bytes" in text
    recording = line.folder / "out/recording.memleak"
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600
    assert line.run("report", recording, "-v").out == line.run("report", "out", "-v").out == text
    assert line.run("diff", "out", "out").code == 0
    recording.rename(line.folder / "moved")
    assert line.run("report", "out", "-v").code == 0, "of report.json"
    again = line.run(*PRELOAD, "-o", "out", "--", "touch", "ran")
    assert again.code == 2
    assert again.error == "out/report.txt exists, not overwritten; use --force or another name"
    assert not (line.folder / "ran").exists()
    assert line.run(*PRELOAD, "-o", "out", "--force", "--", "true").code == 0


def test_recording_holds_no_stack_bytes_unless_asked(line: CommandLine) -> None:
    scenario = {"stack_bytes": 50000}
    for options, least, most in (((), 0, 10_000), (("--keep-stacks",), 150_000, 200_000)):
        result = line.run(
            "record", "-o", "a.memleak", "--force", *options, *PRELOAD, "--", "true", scenario=scenario
        )
        assert (result.code, result.out) == (0, "")
        assert least <= (line.folder / "a.memleak").stat().st_size <= most
        assert line.run("report", "a.memleak", "--format", "json").out.count('"inuse_space":30') == 1


def test_recording_of_every_call(line: CommandLine) -> None:
    result = line.run("record", "-o", "a.memleak", "--record-all", *PRELOAD, "--", "true")
    assert (result.code, result.out) == (0, "")
    kinds = [block.kind for _, block in Recording(line.folder / "a.memleak").blocks()]
    assert kinds.count(BlockKind.EVENTS) == 1
    assert BlockKind.EVIDENCE not in kinds


@pytest.mark.parametrize(
    ("limit", "code"), [("59", 23), ("60", 0), ("1K,2", 23), ("1K,3", 0), ("1MiB", 0), ("0", 23)]
)
def test_fail_on_leak(line: CommandLine, limit: str, code: int) -> None:
    assert line.run("-q", "trace", *PRELOAD, "--fail-on-leak", limit, "--", "true").code == code


def test_interval_prints_in_memleaks_form(line: CommandLine) -> None:
    result = line.run(
        *PRELOAD, *["--interval", "200ms", "--count", "2", "--older", "0s", "-T", "1", "--", "sleep", "2"]
    )
    assert result.code == 0
    assert result.err.count(" Top 1 stacks with outstanding allocations:") == 2
    assert result.err.count("30 bytes in 1 allocations from stack") == 2
    assert "20 bytes" not in result.err
    assert "measured: " not in result.err


def test_target_that_ends_between_interval_prints_still_gets_its_report(line: CommandLine) -> None:
    result = line.run(*PRELOAD, "-v", "--interval", "200ms", "--", "sleep", "0.5")
    assert "stacks with outstanding allocations:" in result.err
    assert "outstanding    60 bytes in 3 allocations" in result.err
    assert "measured: " in result.err


def test_age_limits_interval_prints_but_not_totals(line: CommandLine) -> None:
    words = "--interval 200ms --count 1 --older 1h --json a.json -- sleep 1"
    result = line.run(*PRELOAD, *words.split())
    assert "Top 0 stacks" in result.err
    assert json.loads((line.folder / "a.json").read_text())["totals"]["inuse_objects"] == 3


def test_sizes_limit_sites_but_not_totals(line: CommandLine) -> None:
    result = line.run(*PRELOAD, "-z", "15", "-Z", "25", "--json", "-", "--", "true")
    report = json.loads(result.out)
    assert [site["inuse_space"] for site in report["sites"]] == [20]
    assert report["totals"]["inuse_space"] == 60


def test_trace_prints_every_call(line: CommandLine) -> None:
    result = line.run("trace", *PRELOAD, "--trace", "--", "true")
    assert " 77/78 malloc(24) = 0x1000\n" in result.out


def test_owners_come_from_options_and_the_project_file(line: CommandLine) -> None:
    assert line.run(*PRELOAD, "-o", "r.memleak", "--", "true").code == 0
    (line.folder / "memleak.toml").write_text('not-mine = ["nonexistent"]')
    report = ("report", "r.memleak", "--format", "json")
    for words, owner in (((), "others"), (("--mine", "/nonexistent/program"), "mine")):
        sites = json.loads(line.run(*report, *words).out)["sites"]
        assert [[frame.get("owner") for frame in site["frames"]] for site in sites] == [[None, owner]] * 3
    assert line.run(*report, "-o", "r.json").code == 0
    assert "--mine: r.json is a report, not a recording" in line.run("report", "r.json", "--mine", "x").err
    (line.folder / "memleak.toml").write_text("mine = 1")
    refused = line.run(*PRELOAD, "--", "touch", "ran")
    assert refused.code == 2 and "memleak.toml cannot be used" in refused.err
    assert not (line.folder / "ran").exists()


def test_duration_ends_the_session(line: CommandLine) -> None:
    result = line.run(
        *PRELOAD, "--duration", "300ms", "--json", "-", "--", "sh", "-c", "exec sleep 20 >/dev/null 2>&1"
    )
    assert result.code == 0
    report = json.loads(result.out)
    assert 300e6 <= report["duration_ns"] < 20e9
    assert "exit_status" not in report["target"]
    said = r"^memleak-android: the measurement is over; sh goes on running \(pid \d+\)$"
    assert re.search(said, result.err, re.MULTILINE)
