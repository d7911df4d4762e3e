"""Profiles as the formats write them, and read back from report.json."""

import io
import json
import re
from typing import Any

from memleak_android.host.profile.comparison import compare
from memleak_android.host.profile.profile import Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import COMPARISON_FORMATS, FORMATS
from memleak_android.host.reports.json.report import read_report


def written(name: str, of: Profile, **options: Any) -> bytes:
    """What the format `name` makes of a profile."""
    stream = io.BytesIO()
    FORMATS[name].write(of, stream, ReportOptions(**options))
    return stream.getvalue()


def written_text(name: str, of: Profile, **options: Any) -> str:
    return written(name, of, **options).decode()


def difference(name: str, old: Profile, new: Profile, **options: Any) -> str:
    """What the format `name` makes of the comparison of two profiles."""
    stream = io.BytesIO()
    COMPARISON_FORMATS[name].write(compare(old, new), stream, ReportOptions(**options))
    return stream.getvalue().decode()


def data_of_page(page: str) -> Any:
    """The JSON that an HTML page shows."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def read_back(of: Profile, **options: Any) -> Profile:
    return read_report(written("json", of, **options), "report.json")
