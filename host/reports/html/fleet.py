"""A FleetProfile as one HTML file, by the same rules as html.py: whole, offline, names as text only."""

from __future__ import annotations

from typing import TextIO

from memleak_android.host.profile.fleet_profile import FleetProfile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.html.fleet_data import fleet_data
from memleak_android.host.reports.html.report import write_page

SCRIPTS = (
    "d3-7.9.2.min.js",
    "data.js",
    "frame.js",
    "table.js",
    "prevalence.js",
    "fleet_tables.js",
    "fleet.js",
)


def write(fleet: FleetProfile, stream: TextIO, options: ReportOptions) -> None:
    """All sites and recordings are in the sums; of very many the page lists the largest, and those that are not well."""
    write_page("fleet.html", ("page.css", "fleet.css"), SCRIPTS, fleet_data(fleet), stream)
