"""`pytest --memleak`: the test run under measurement; it fails when native extensions leave memory behind.

The outer pytest starts memleak-android on an inner one with the same arguments and judges the recording. The inner one runs each
test several times and writes down when (test_runs.py). A stack counts for a test if each of its runs but the first left blocks
behind: caches that are filled once do not. Counted are stacks of modules that are neither the interpreter's nor the system's, be it
that they allocated themselves or through Python's API.

Nothing of the tool is imported unless the option is given: this module is loaded by every pytest run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memleak_android.host.analysis.held_by_span import HeldBySpan, Span
    from memleak_android.host.profile.profile import Profile

INNER = "MEMLEAK_ANDROID_PYTEST"  # for the inner run: the folder of its times
_RUNS = 5
_TESTS_SHOWN_MAX = 20
_SYSTEM_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "[")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memleak", "native memory that tests leave behind")
    group.addoption(
        "--memleak", action="store_true", help="measure the run; fail when extensions hold memory"
    )
    group.addoption(
        "--memleak-limit", default="0", metavar="BYTES[,COUNT]", help="what they may hold: 64K, or 64K,100"
    )
    group.addoption(
        "--memleak-runs", type=int, default=_RUNS, metavar="N",
        help="run each test so often; 1: once, and all that is held at the end counts",
    )  # fmt: skip
    group.addoption(
        "--memleak-suppressions", action="append", default=[], metavar="FILE", help="LeakSanitizer's syntax"
    )
    group.addoption("--memleak-output", metavar="FILE", help="keep the recording there, for `report`")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Returns None to let pytest run normally."""
    if not config.getoption("--memleak") or os.environ.get(INNER):
        return None
    from memleak_android.host.errors import ExitCode
    from memleak_android.unwind.file_writing import temporary_folder

    with temporary_folder("memleak-pytest-") as temporary:
        recording = Path(config.getoption("--memleak-output") or Path(temporary) / "run.memleak")
        times = Path(temporary) / "times"
        times.mkdir()
        follow = bool(config.getoption("numprocesses", None))  # pytest-xdist runs tests in child processes
        code = _measure(list(config.invocation_params.args), recording, times, follow=follow)
        return _judge(recording, times, config) if code in (ExitCode.OK, ExitCode.INCOMPLETE) else code


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In the inner run: runs the test several times, of which the last or the first that fails is reported."""
    folder, runs = os.environ.get(INNER), item.config.getoption("--memleak-runs")
    if not item.config.getoption("--memleak") or not folder or runs < 2:
        return None
    from _pytest.runner import runtestprotocol

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for run in range(runs):
        if run and hasattr(item, "_initrequest"):
            item._initrequest()  # its fixtures are set up anew, as pytest-rerunfailures does
        _note_time(Path(folder), item.nodeid, run)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        _note_time(Path(folder), "", run)
        if not all(report.passed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


_COARSE = 6  # CLOCK_MONOTONIC_COARSE (clock_gettime(2)), of which blocks have their times


def _note_time(folder: Path, test: str, run: int) -> None:
    """Begins a run of a test, "" = what follows belongs to none. Waits for the clock's next tick, so that no block is of two."""
    before = now = time.clock_gettime_ns(_COARSE)
    while now == before:
        now = time.clock_gettime_ns(_COARSE)
    with (folder / str(os.getpid())).open("a") as file:
        file.write(json.dumps([now, test, run]) + "\n")


def _measure(arguments: Sequence[str], recording: Path, times: Path, follow: bool) -> int:
    # -P: import nothing from the working directory. The shim sees Python's objects.
    tool = [sys.executable, "-P", "-m", "memleak_android.host", "record", "-q", "--tracer", "preload"]
    tool += ["--exit-status", "ours"]
    tool += ["-o", str(recording)]
    more = ["--follow"] if follow else []
    inner = ["--", sys.executable, *_import_options(), "-m", "pytest", *map(str, arguments)]
    return subprocess.run(
        [*tool, *more, *inner], env={**os.environ, INNER: str(times)}, check=False
    ).returncode


def _import_options() -> list[str]:
    """The inner run imports from the working directory if the outer one does: `python -m pytest`, not `pytest`."""
    is_by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    return [] if is_by_module and not sys.flags.safe_path else ["-P"]


def _judge(recording: Path, times: Path, config: pytest.Config) -> int:
    """The exit code of a failed inner run, else that of the limit."""
    from memleak_android.host.commands.values import LIMIT
    from memleak_android.host.errors import ExitCode, MemleakError
    from memleak_android.host.profile.gate import GateRules, judge
    from memleak_android.host.profile.suppressions import read_suppressions
    from memleak_android.host.recording.read import read_by_span
    from memleak_android.host.reports.text.gate import failure_lines

    tests, spans = _read_times(times)
    try:
        templates = [
            template
            for path in config.getoption("--memleak-suppressions")
            for template in read_suppressions(Path(path))
        ]
        profile, held = read_by_span(recording, spans)
    except MemleakError as error:
        print(f"memleak: {error}", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    rules = GateRules(LIMIT.convert(config.getoption("--memleak-limit"), None, None), templates)
    judged, by_test = of_extensions(profile), dict[str, list[str]]()
    if config.getoption("--memleak-runs") > 1:
        left = left_by_tests(held, tests)
        judged, by_test = each_run(judged, left), {site: list(tests) for site, tests in left.items()}
    judged = judge(judged, rules)
    print("\n".join(f"memleak: {line}" for line in _answer_lines(judged, by_test)), file=sys.stderr)
    failed = os.waitstatus_to_exitcode(profile.target.exit_status or 0)
    return failed or (ExitCode.LEAKS if failure_lines(judged) else ExitCode.OK)


def _answer_lines(judged: Profile, by_test: Mapping[str, Sequence[str]]) -> list[str]:
    """The answer, what failed, the tests that leave something in each run, and the measurement.

    by_test: tests by the id of a site.
    """
    from memleak_android.host.profile.answer import AnswerState
    from memleak_android.host.profile.answering import unseen
    from memleak_android.host.reports.base import bounded
    from memleak_android.host.reports.text.answer import WORDS, measured_line
    from memleak_android.host.reports.text.gate import failure_lines, held_line
    from memleak_android.host.reports.units import count_text, size_text

    gate, failure = judged.gate, failure_lines(judged)
    if gate is None:
        return [measured_line(judged)]
    names = list(dict.fromkeys(test for site in gate.culprits for test in by_test.get(site, ())))
    held = f"{size_text(gate.space)} in {count_text(gate.objects, 'block')}"
    if names:
        tests = f"{len(names):,} test{'s' * (len(names) != 1)}"
        answer = f"{WORDS[AnswerState.LEAKING]}  each run of {tests} leaves {held}"
    elif gate.objects:
        answer = f"{WORDS[AnswerState.HELD_AT_EXIT]}  {held}"
    elif why := unseen(judged):
        answer = f"{WORDS[AnswerState.CANNOT_TELL]}  {bounded(why)}"
    else:
        answer = f"{WORDS[AnswerState.NOT_GROWING]}  {held_line(gate)}"
    lines = [answer, *(failure or [f"within the limit: {held_line(gate)}"] * bool(gate.objects))]
    lines += [f"     in each run of {bounded(test)}" for test in names[:_TESTS_SHOWN_MAX]]
    if len(names) > _TESTS_SHOWN_MAX:
        lines.append(f"     … and {len(names) - _TESTS_SHOWN_MAX} more tests")
    return [*lines, measured_line(judged)]


def _read_times(folder: Path) -> tuple[list[tuple[str, int]], list[Span]]:
    """Test and number of its run, "" = none, and since when, for each span."""
    from memleak_android.host.analysis.held_by_span import Span

    rows = [(int(path.name), *json.loads(line)) for path in sorted(folder.iterdir()) for line in path.open()]
    return [(test, run) for _, _, test, run in rows], [Span(pid, begin) for pid, begin, _, _ in rows]


def left_by_tests(
    held: HeldBySpan, tests: Sequence[tuple[str, int]]
) -> dict[str, dict[str, tuple[int, int]]]:
    """Site's id → test → bytes and blocks of a run, where each run of the test but the first left some.

    tests: of each span, its test and the number of the run. A test without a second run is not judged.
    """
    runs: dict[str, set[int]] = {}
    for test, run in tests:
        if test and run:
            runs.setdefault(test, set()).add(run)
    left: dict[str, dict[str, tuple[int, int]]] = {}
    for site, spans in held.items():
        amounts: dict[str, dict[int, tuple[int, int]]] = {}
        for span, amount in spans.items():
            test, run = tests[span]
            amounts.setdefault(test, {})[run] = amount
        for test, by_run in amounts.items():
            if runs.get(test) and runs[test] <= by_run.keys():
                space, objects = (sum(by_run[run][i] for run in runs[test]) for i in (0, 1))
                n = len(runs[test])
                left.setdefault(site, {})[test] = space // n, -(-objects // n)
    return left


def each_run(profile: Profile, left: Mapping[str, Mapping[str, tuple[int, int]]]) -> Profile:
    """The profile of what one run of each test leaves behind."""
    from dataclasses import replace

    def amount(site: str) -> tuple[int, int]:
        amounts = left.get(site, {}).values()
        return sum(space for space, _ in amounts), sum(objects for _, objects in amounts)

    by_id = {site.id: site for site in reversed(profile.sites) if site.id in left}
    sites = [
        replace(site, inuse_space=amount(id_)[0], inuse_objects=amount(id_)[1]) for id_, site in by_id.items()
    ]
    space, objects = amount("")
    totals = replace(profile.totals, unattributed_space=space, unattributed_objects=objects)
    return replace(profile, sites=tuple(sites), totals=totals)


def of_extensions(profile: Profile) -> Profile:
    """Only the sites of modules that are neither the interpreter's nor the system's; blocks without a stack stay."""
    from dataclasses import replace

    from memleak_android.host.profile.culprit import responsible_frame
    from memleak_android.host.profile.runtime_sites import PYTHON_MODULE

    def is_native(module: str) -> bool:
        return not PYTHON_MODULE.fullmatch(module) and not module.startswith(_SYSTEM_FOLDERS)

    frames = ((site, responsible_frame(site.frames)) for site in profile.sites)
    kept = tuple(site for site, frame in frames if frame and frame.module and is_native(frame.module))
    return replace(profile, sites=kept)
