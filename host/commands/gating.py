"""--fail-on-leak, --baseline, --suppressions: what they ask for, and what follows from the verdict."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.results import EXIT_CODES, check_new, write_file
from memleak_android.host.console import say
from memleak_android.host.profile.gate import GateRules
from memleak_android.host.profile.growth_gate import GrowthLimit
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.suppressions import read_suppressions
from memleak_android.host.recording.read import read_profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export import github
from memleak_android.host.reports.formats import SUPPRESSIONS
from memleak_android.host.reports.text.gate import failure_lines


def gate_rules(given: Mapping[str, Any]) -> GateRules:
    """Reads the files that the options name, before anything is measured. Raises UsageError."""
    baseline: Path | None = given["baseline"]
    if given["gen_suppressions"]:
        check_new(given["gen_suppressions"], given["force"])
    return GateRules(
        limit=given["fail_on_leak"],
        suppressions=[one for path in given["suppressions"] for one in read_suppressions(path)],
        growth=given["fail_on_growth"],
        baseline=(read_profile(baseline, View(), given["symbols"]), str(baseline)) if baseline else None,
    )


def refuse_limit_by_run(limit: GrowthLimit | None, scenario: str | None) -> None:
    """Before anything is measured that will know no runs."""
    if limit is not None and limit.is_by_run and scenario is None:
        raise click.UsageError("--fail-on-growth by run, and no --scenario; write it by time: 1MB/min")


def conclude(profile: Profile, given: Mapping[str, Any]) -> int:
    """After the results are out: suppressions, the reason of a failure; the exit code."""
    if given["gen_suppressions"]:
        write_file(given["gen_suppressions"], SUPPRESSIONS, profile, ReportOptions())
    for line in failure_lines(profile):
        print(line, file=sys.stderr)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        _tell_github(profile)
    return EXIT_CODES[profile.verdict]


def source_root() -> str:
    """Where the repository of the measured program lies, as far as it can be known."""
    return os.environ.get("GITHUB_WORKSPACE") or os.getcwd()


def _tell_github(profile: Profile) -> None:
    """Annotations among what stderr tells (the runner reads both streams), a table in the step's summary."""
    options = ReportOptions(source_root=source_root())
    github.write_annotations(profile, sys.stderr, options)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with open(summary, "a", encoding="utf-8") as stream:
            github.write_summary(profile, stream, options)
    except OSError as error:
        say(f"no step summary: cannot write {summary}: {error.strerror}")
