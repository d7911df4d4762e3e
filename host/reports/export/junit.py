"""JUnit's XML, for CI that shows test results: the limit, each site that counted, and the measurement as test cases."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TextIO
from xml.etree import ElementTree

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.reports.base import ReportOptions, bounded, frame_text, outstanding
from memleak_android.host.reports.export.exported import display_name
from memleak_android.host.reports.text.answer import answer_text, measured_line
from memleak_android.host.reports.text.gate import culprits, failure_lines, growth_line, held_line
from memleak_android.host.reports.text.growth import site_growth

SITES_MAX = 200
FRAMES_MAX = 100
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 §2.2
SUITE = "memleak-android"


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """A case for each limit, site and for the measurement: sites fail only where a limit is broken."""
    sites = [_site(site, profile) for site in culprits(profile)[:SITES_MAX]]
    cases = [*_limits(profile), *sites, _measurement(profile)]
    taken = datetime.fromtimestamp(profile.wall_clock_s, UTC).replace(tzinfo=None)
    counts = {name: sum(case.find(tag) is not None for case in cases) for name, tag in _TAGS.items()}
    figures = {"tests": str(len(cases)), **{name: str(count) for name, count in counts.items()}}
    figures |= {"name": SUITE, "time": f"{profile.duration_ns / 1e9:.3f}"}
    suites = ElementTree.Element("testsuites", figures)
    about = {"timestamp": taken.isoformat(timespec="seconds"), "hostname": "localhost"}
    suite = ElementTree.SubElement(suites, "testsuite", figures | about)
    if profile.answer is not None:
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (("verdict", profile.answer.state), ("answer", answer_text(profile))):
            ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
    suite.extend(cases)
    ElementTree.indent(suites, " ")
    stream.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    stream.write(ElementTree.tostring(suites, encoding="unicode") + "\n")


_TAGS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _case(name: str, group: str = SUITE) -> ElementTree.Element:
    return ElementTree.Element("testcase", name=_xml(name), classname=_xml(group), time="0")


def _measurement(profile: Profile) -> ElementTree.Element:
    case = _case("measurement")
    measured = measured_line(profile)
    if profile.measurement is Measurement.INCOMPLETE:
        error = ElementTree.SubElement(case, "error", type="incomplete", message=_xml(measured))
        error.text = _xml("\n".join((measured, *map(bounded, profile.notes))))
    else:
        ElementTree.SubElement(case, "system-out").text = _xml(measured)
    return case


def _limits(profile: Profile) -> Iterator[ElementTree.Element]:
    """`held`, `growth`, each with its limit; without any the answer alone, skipped."""
    gate, answer = profile.gate, list(filter(None, [answer_text(profile)]))
    if gate is None or (gate.limit_space is None and gate.growth is None):
        case = _case("answer")
        message = "; ".join((*answer, "no --fail-on-leak or -growth, and no --baseline"))
        ElementTree.SubElement(case, "skipped", message=_xml(message))
        yield case
        return
    if gate.limit_space is not None:
        yield _limit("held", gate.holds_too_much, held_line(gate), answer, profile)
    if gate.growth is not None:
        yield _limit("growth", gate.growth.is_exceeded, growth_line(gate.growth), answer, profile)


def _limit(
    name: str, is_exceeded: bool, line: str, answer: list[str], profile: Profile
) -> ElementTree.Element:
    case = _case(name)
    if is_exceeded:
        failure = ElementTree.SubElement(
            case, "failure", type="limit", message=_xml("; ".join((*answer, line)))
        )
        failure.text = _xml("\n".join((*answer, *failure_lines(profile))))
    else:
        ElementTree.SubElement(case, "system-out").text = _xml("\n".join((*answer, line)))
    return case


def _site(site: CallSite, profile: Profile) -> ElementTree.Element:
    frame = responsible_frame(site.frames)
    name = f"{display_name(frame)} {site.id}" if frame else site.id
    case = _case(name, f"{SUITE}.{bounded(module_name(frame.module))}" if frame and frame.module else SUITE)
    if profile.is_over_limit:
        message = "; ".join(filter(None, (outstanding(site), site_growth(site))))
        failure = ElementTree.SubElement(case, "failure", type="leak", message=message)
        failure.text = _xml("\n".join(frame_text(one) for one in site.frames[:FRAMES_MAX]))
    return case


def _xml(text: str) -> str:
    """What XML cannot hold, even as a reference, as U+FFFD."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
