"""JUnit's XML, for CI that shows test results: the measurement, the limit, and each site that counted as a test case."""

import re
from datetime import UTC, datetime
from typing import TextIO
from xml.etree import ElementTree

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.profile import CallSite, Profile, Verdict
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.reports.base import ReportOptions, amount, bounded, frame_text
from memleak_android.host.reports.export.exported import display_name
from memleak_android.host.reports.text.answer import answer_text
from memleak_android.host.reports.text.gate import culprits, failure_lines, verdict_line

SITES_MAX = 200
FRAMES_MAX = 100
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 §2.2
SUITE = "memleak-android"


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Sites fail only where the limit is broken; an incomplete result is an error of the case `measurement`."""
    cases = [_measurement(profile), _limit(profile)]
    cases += [_site(site, profile) for site in culprits(profile)[:SITES_MAX]]
    taken = datetime.fromtimestamp(profile.wall_clock_s, UTC).replace(tzinfo=None)
    counts = {name: sum(case.find(tag) is not None for case in cases) for name, tag in _TAGS.items()}
    figures = {"tests": str(len(cases)), **{name: str(count) for name, count in counts.items()}}
    figures |= {"name": SUITE, "time": f"{profile.duration_ns / 1e9:.3f}"}
    suites = ElementTree.Element("testsuites", figures)
    about = {"timestamp": taken.isoformat(timespec="seconds"), "hostname": "localhost"}
    suite = ElementTree.SubElement(suites, "testsuite", figures | about)
    if answer := answer_text(profile):
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", name="answer", value=_xml(answer))
    suite.extend(cases)
    ElementTree.indent(suites, " ")
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    stream.write(ElementTree.tostring(suites, encoding="unicode") + "\n")


_TAGS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _case(name: str, group: str = SUITE) -> ElementTree.Element:
    return ElementTree.Element("testcase", name=_xml(name), classname=_xml(group), time="0")


def _measurement(profile: Profile) -> ElementTree.Element:
    case = _case("measurement")
    is_incomplete = profile.gate.is_incomplete if profile.gate else profile.verdict is Verdict.INCOMPLETE
    if is_incomplete:
        error = ElementTree.SubElement(case, "error", type="incomplete", message="something is missing")
        error.text = _xml("\n".join(map(bounded, profile.notes)))
    return case


def _limit(profile: Profile) -> ElementTree.Element:
    case, gate = _case("leak limit"), profile.gate
    if gate is None or (gate.limit_space is None and gate.growth is None):
        ElementTree.SubElement(case, "skipped", message="no --fail-on-leak or -growth, and no --baseline")
    elif profile.verdict is Verdict.LEAKS:
        failure = ElementTree.SubElement(case, "failure", type="limit", message=_xml(verdict_line(gate)))
        failure.text = _xml("\n".join(failure_lines(profile)))
    return case


def _site(site: CallSite, profile: Profile) -> ElementTree.Element:
    frame = responsible_frame(site.frames)
    name = f"{display_name(frame)} {site.id}" if frame else site.id
    case = _case(name, f"{SUITE}.{bounded(module_name(frame.module))}" if frame and frame.module else SUITE)
    if profile.verdict is Verdict.LEAKS:
        held = amount(site.inuse_space, site.inuse_objects)
        failure = ElementTree.SubElement(case, "failure", type="leak", message=f"{held} outstanding")
        failure.text = _xml("\n".join(frame_text(one) for one in site.frames[:FRAMES_MAX]))
    return case


def _xml(text: str) -> str:
    """What XML cannot hold, even as a reference, as U+FFFD."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
