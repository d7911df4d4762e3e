"""A self-contained HTML file: flame graphs, tables, search. It works offline and loads nothing.

The data is JSON in a script element with `<` escaped, so that no name can end the element. The page inserts names as text
only. The libraries in web/ are those of NOTICE, byte for byte.
"""

from collections.abc import Sequence
from importlib import resources
from typing import Any, TextIO

import msgspec

from memleak_android.host.profile.comparison import Comparison
from memleak_android.host.profile.fleet_profile import FleetProfile
from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.html.fleet_data import fleet_data
from memleak_android.host.reports.html.page_data import comparison_data, profile_data

SCRIPTS = (
    *("d3-7.9.2.min.js", "d3-flame-graph-5.0.0.min.js"),
    *("data.js", "keyboard.js", "flame.js", "frame.js", "table.js", "tables.js", "timeline.js", "page.js"),
)
FLEET_SCRIPTS = (
    "d3-7.9.2.min.js",
    "data.js",
    "frame.js",
    "table.js",
    "prevalence.js",
    "fleet_tables.js",
    "fleet.js",
)
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write(result: Profile | Comparison | FleetProfile, stream: TextIO, options: ReportOptions) -> None:
    """Write a page. All sites are in the sums; of the smallest ones the page has the sums only."""
    if isinstance(result, FleetProfile):
        _write_page("fleet.html", ("page.css", "fleet.css"), FLEET_SCRIPTS, fleet_data(result), stream)
        return
    data = comparison_data(result) if isinstance(result, Comparison) else profile_data(result)
    data["byObjects"] = options.sort == "count"
    _write_page("page.html", ("page.css",), SCRIPTS, data, stream)


def _write_page(
    name: str, styles: Sequence[str], scripts: Sequence[str], data: dict[str, Any], stream: TextIO
) -> None:
    """name, styles, scripts: files of web/. data: JSON for the page's element `data`."""
    page = _file(name)
    for mark, text in (
        ("/*STYLE*/", "".join(map(_file, styles))),
        ("/*DATA*/", json_in_script(data)),
        ("/*SCRIPTS*/", "\n".join(map(_file, scripts))),
    ):
        before, _, page = page.partition(mark)
        stream.write(before + text)
    stream.write(page)


def json_in_script(data: Any) -> str:
    """JSON without characters that an HTML parser takes for markup."""
    text = msgspec.json.encode(data).decode()
    for char, escape in ESCAPES.items():
        text = text.replace(char, escape)
    return text


def _file(name: str) -> str:
    return (
        resources.files("memleak_android.host.reports.html").joinpath("web", name).read_text(encoding="utf-8")
    )
