"""--fail-on-leak, --baseline, --suppressions: the rules of the gate, and the exit code."""

import os
import sys
from pathlib import Path

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.options import ResultOptions, StatusOptions
from memleak_android.host.commands.results import check_new, write_file
from memleak_android.host.console import say
from memleak_android.host.errors import ExitCode
from memleak_android.host.profile.gate import GateRules
from memleak_android.host.profile.profile import Measurement, Profile
from memleak_android.host.profile.suppressions import read_suppressions
from memleak_android.host.recording.read import read_profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export import github
from memleak_android.host.reports.formats import SUPPRESSIONS
from memleak_android.host.reports.text.gate import failure_lines
from memleak_android.unwind.file_writing import append


def gate_rules(result: ResultOptions, force: bool) -> GateRules:
    """Reads the files that the options name, before anything is measured. Raises UsageError."""
    baseline = result.baseline
    if result.gen_suppressions:
        check_new(result.gen_suppressions, force)
    return GateRules(
        limit=result.fail_on_leak,
        suppressions=[template for path in result.suppressions for template in read_suppressions(path)],
        growth=result.fail_on_growth,
        baseline=(read_profile(baseline, View(), result.symbols), str(baseline)) if baseline else None,
    )


def conclude(profile: Profile, result: ResultOptions, status: StatusOptions | None = None) -> int:
    """Once the results are written: suppressions, and the reason of a failure. Returns the exit code.

    status: of a command that was measured.
    """
    if result.gen_suppressions:
        write_file(result.gen_suppressions, SUPPRESSIONS, profile, ReportOptions())
    for line in failure_lines(profile):
        print(line, file=sys.stderr)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate(profile)
    ours = _exit_code(profile)
    own = exit_code_of(profile.target.exit_status)
    if status is None or status.exit_status == "ours" or own is None or profile.is_over_limit:
        return ours
    is_limited = bool(result.fail_on_leak or result.fail_on_growth or result.baseline)
    return ours if ours and (is_limited or status.fail_on_incomplete) else own


def _exit_code(profile: Profile) -> ExitCode:
    if profile.is_over_limit:
        return ExitCode.LEAKS
    return ExitCode.OK if profile.measurement is Measurement.COMPLETE else ExitCode.INCOMPLETE


def exit_code_of(wait_status: int | None) -> int | None:
    """As shells give it: 128 + n for signal n. None = no command has ended."""
    if wait_status is None:
        return None
    signal = wait_status & 0x7F
    return 128 + signal if signal else wait_status >> 8 & 0xFF


def source_root() -> str:
    """The repository of the measured program, or the working directory."""
    return os.environ.get("GITHUB_WORKSPACE") or os.getcwd()


def _annotate(profile: Profile) -> None:
    """GitHub annotations on stderr (the runner reads both streams), and a table in the step's summary."""
    options = ReportOptions(source_root=source_root())
    github.write_annotations(profile, sys.stderr, options)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with open(append(Path(summary)), "a", encoding="utf-8") as stream:
            github.write_summary(profile, stream, options)
    except OSError as error:
        say(f"could not write the step summary {summary}: {error.strerror}")
