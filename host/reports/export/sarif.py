"""SARIF 2.1.0 (OASIS): one result per leaking site, for code scanning. Fingerprints are site ids."""

from importlib.metadata import version
from typing import Any, TextIO
from urllib.parse import quote

import msgspec

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.field_types import NO_LEAKS
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.reports.base import ReportOptions, bounded, leaks_text, outstanding, relative_source
from memleak_android.host.reports.export.exported import display_name
from memleak_android.host.reports.json.report import answer_object
from memleak_android.host.reports.text.answer import answer_text, level, measured_line

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
RULE = "outstanding-allocation"
RESULTS_MAX = 1000  # GitHub takes 25,000 of a run, and shows 5,000
FRAMES_MAX = 100


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Errors are the sites that broke the limit; without a limit every site of the user's is a warning.

    Sites that did not count (suppressed, no growth since the baseline) are suppressed results or none.
    """
    made = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(profile, options)]}
    stream.write(msgspec.json.format(msgspec.json.encode(made), indent=1).decode() + "\n")


def _run(profile: Profile, options: ReportOptions) -> dict[str, Any]:
    sites = [site for site in profile.sites if _is_reported(site, profile)]
    sites.sort(key=lambda site: -site.inuse_space)
    notes = [("note", note) for note in profile.notes]
    if len(sites) > RESULTS_MAX:
        notes.append(("note", f"{len(sites) - RESULTS_MAX} smaller sites are left out"))
    is_incomplete = profile.measurement is Measurement.INCOMPLETE
    notes.append(("warning" if is_incomplete else "note", measured_line(profile)))
    if profile.answer is not None:
        notes.insert(0, (level(profile), answer_text(profile)))
    return {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not is_incomplete,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": bounded(text)}} for level, text in notes
                ],
            }
        ],
        "properties": {"answer": answer_object(profile)},
        "results": [_result(site, profile, options) for site in sites[:RESULTS_MAX]],
    }


def _driver() -> dict[str, Any]:
    about = "Memory that the program holds at the end of the measurement, by the stack that allocated it."
    rule = {
        "id": RULE,
        "name": "OutstandingAllocation",
        "shortDescription": {"text": "Outstanding allocation"},
        "fullDescription": {"text": about},
        "defaultConfiguration": {"level": "warning"},
    }
    return {"name": "memleak-android", "version": version("memleak-android"), "rules": [rule]}


def _is_reported(site: CallSite, profile: Profile) -> bool:
    if site.kind in NO_LEAKS:
        return False
    gate = profile.gate
    return gate is None or bool(site.suppressed_by) or site.id in gate.culprits


def _result(site: CallSite, profile: Profile, options: ReportOptions) -> dict[str, Any]:
    frame = responsible_frame(site.frames)
    where = f" in {display_name(frame)}" if frame else ""
    result: dict[str, Any] = {
        "ruleId": RULE,
        "ruleIndex": 0,
        "level": _level(profile),
        "message": {"text": f"{outstanding(site)}, allocated{where}"},
        "locations": [_location(frame, options)] if frame else [],
        "partialFingerprints": {"stackHash/v1": site.id},
        "properties": {"kind": bounded(site.kind)},
        "stacks": [{"frames": [_stack_frame(one, options) for one in site.frames[:FRAMES_MAX]]}],
    }
    if site.leaks:
        result["message"]["text"] += f"; {leaks_text(site.leaks)}"
        kinds = {one.kind: {"space": one.space, "objects": one.objects} for one in site.leaks}
        result["properties"]["leaks"] = kinds
    if site.suppressed_by:
        result["suppressions"] = [
            {"kind": "external", "justification": f"leak:{bounded(site.suppressed_by)}"}
        ]
    return result


def _level(profile: Profile) -> str:
    if profile.is_over_limit:
        return "error"
    gate = profile.gate
    return "note" if gate and (gate.limit_space is not None or gate.growth) else "warning"


def _stack_frame(frame: Frame, options: ReportOptions) -> dict[str, Any]:
    made: dict[str, Any] = {"location": _location(frame, options)}
    if frame.module:
        made["module"] = bounded(module_name(frame.module))
    return made


def _location(frame: Frame, options: ReportOptions) -> dict[str, Any]:
    name = display_name(frame)
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "function"}],
        "message": {"text": name},
    }
    if frame.file:
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(frame.file, options.source_root)}}
        if frame.line:
            physical["region"] = {"startLine": frame.line}
        location["physicalLocation"] = physical
    return location


def _uri(file: str, root: str) -> str:
    """RFC 3986: relative to the root of the sources where it can be."""
    path = quote(bounded(relative_source(file, root)), safe="/")
    return f"file://{path}" if path.startswith("/") else path
