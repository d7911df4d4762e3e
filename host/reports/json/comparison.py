"""diff.json: `memleak-android/diff/1`. Fields are only added within a major."""

from typing import Any, TextIO

import msgspec

from memleak_android.host.profile.changes import Difference, Held, PlaceChange, SiteChange
from memleak_android.host.profile.comparison import Comparison
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.json.report import REPORT
from memleak_android.host.reports.text.comparison import difference_line


def write(comparison: Comparison, stream: TextIO, options: ReportOptions) -> None:
    """Write one JSON object, indented, with a final newline. All changes, whatever options.top says."""
    encoded = msgspec.json.encode(_diff(comparison))
    stream.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def _diff(comparison: Comparison) -> dict[str, Any]:
    """unattributed: blocks without a stack, in no site."""
    old, new = (profile.totals for profile in (comparison.old, comparison.new))
    before, after = comparison.unattributed
    return {
        "schema": "memleak-android/diff/1",
        "answer": {"line": difference_line(comparison)}
        | msgspec.to_builtins(REPORT.form(Difference).write(comparison.difference)),
        "old": Held(old.inuse_space, old.inuse_objects),
        "new": Held(new.inuse_space, new.inuse_objects),
        "unattributed_old": before,
        "unattributed_new": after,
        "unchanged_sites": comparison.unchanged,
        "places": [REPORT.form(PlaceChange).write(change) for change in comparison.places],
        "sites": [REPORT.form(SiteChange).write(change) for change in comparison.changes],
        "notes": list(comparison.notes),
    }
