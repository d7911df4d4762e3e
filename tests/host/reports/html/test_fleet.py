"""The HTML page of many recordings: self-contained, names harmless, its sums those of the JSON, its size bounded."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.profile.changes import Change
from memleak_android.host.profile.fleet_profile import (
    CachedFiles,
    FleetProfile,
    OnlyOn,
    RecordingRow,
    RecordingState,
    SitePrevalence,
    VersionChange,
    VersionSum,
)
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FLEET_FORMATS
from memleak_android.host.reports.html import fleet_data as fleet_page_data
from tests.support.builders.profiles import SERVER, frame, profile
from tests.support.oracles import chromium
from tests.support.written import data_of_page

EVIL = "</script><img src=x onerror=\"out('evil', 1)\"><b>\x1b[2J"
FRAMES = (frame(SERVER, "planted::open(int)"), frame(SERVER, "main"))


def recording(
    number: int, state: RecordingState = RecordingState.OK, reason: str = "", **lost: int
) -> RecordingRow:
    return RecordingRow(
        source=f"farm/{number}.memleak", digest=f"{number:032x}", state=state, reason=reason, bytes=5000,
        taken_at_s=1.7e9, duration_s=61.5, package="com.example.app", version="1.0" if number % 2 else "2.0",
        version_code=0, model=f"model {number}", api_level=33, abi="arm64-v8a", serial="", inuse_space=7000,
        unattributed_space=100, unattributed_objects=1, stacks=10, complete=9, lost=tuple(lost.items()),
    )  # fmt: skip


def prevalence(number: int, mean: float = 1500.25) -> SitePrevalence:
    return SitePrevalence(
        id=f"{number:016x}", kind="user", end="ROOT", frames=FRAMES, recordings=2, share=2 / 3, mean_space=mean,
        mean_objects=2.5, p50=1000, p90=2000, p99=3000, versions=("1.0", "2.0"),
    )  # fmt: skip


def fleet_profile(sites: int = 3, **changed: object) -> FleetProfile:
    evil = (frame(SERVER, EVIL), frame(SERVER, "main"))
    fields: dict[str, object] = {
        "recordings": (
            recording(1),
            recording(2, RecordingState.INCOMPLETE, "3 blocks lost", table_full=3, ring_full=1),
            recording(3, table_full=4),
            recording(4, RecordingState.BROKEN, EVIL),
        ),
        "versions": (VersionSum("1.0", 2, 6000.5, 61.5), VersionSum(EVIL, 1, 7000.0, 61.5)),
        "sites": tuple(prevalence(i, 1500.25 / (i + 1)) for i in range(sites)),
        "changes": (
            VersionChange(
                id=f"{1:016x}", kind="user", frames=evil, change=Change.NEW, old_version="1.0", new_version=EVIL,
                old=0.0, new=750.125, old_recordings=0, new_recordings=1, old_of=2, new_of=1, q=0.0001,
            ),
        ),
        "only_on": (
            OnlyOn(
                id=f"{2:016x}", kind="user", frames=FRAMES, dimension="api_level", value="33", recordings=3, of=3,
                mean_space=500.0, p=0.001,
            ),
        ),
        "mean": profile(),
        "notes": (EVIL,),
        "cache": (CachedFiles("unwind tables", 2, 7, 0),),
    }  # fmt: skip
    return FleetProfile(**{**fields, **changed})  # type: ignore[arg-type]


def written(of: FleetProfile, format_: str) -> str:
    stream = io.BytesIO()
    FLEET_FORMATS[format_].write(of, stream, ReportOptions())
    return stream.getvalue().decode()


def test_sums_are_those_of_the_json() -> None:
    page = data_of_page(written(fleet_profile(), "html"))
    report = json.loads(written(fleet_profile(), "json"))
    assert page["counted"] == report["counted"] == 3
    assert page["meanSpace"] == sum(site["mean_space"] for site in report["sites"])
    assert [(row["id"], row["mean"], row["ranks"]) for row in page["sites"]] == [
        (site["id"], site["mean_space"], [site["p50"], site["p90"], site["p99"]]) for site in report["sites"]
    ]
    assert [row["means"] for row in page["changes"]] == [
        [one["old"], one["new"]] for one in report["changes"]
    ]
    assert [row["p"] for row in page["onlyOn"]] == [one["p"] for one in report["only_on"]]
    assert sum(page["states"].values()) == len(report["recordings"]) == page["recordingsInAll"]


def test_losses_are_reported_by_cause() -> None:
    fleet = fleet_profile()
    assert fleet.lost() == {"table_full": (7, 2), "ring_full": (1, 1)}
    page = data_of_page(written(fleet, "html"))
    assert ["lost: table_full", "7 in 2 recordings"] in page["facts"]
    assert page["recordings"][1]["lost"] == {"table_full": 3, "ring_full": 1}
    assert "lost: 7 table_full in 2 recordings" in written(fleet, "text")
    report = json.loads(written(fleet, "json"))
    losses = [{}, {"table_full": 3, "ring_full": 1}, {"table_full": 4}]
    assert [row["lost"] for row in report["recordings"][:3]] == losses


def test_names_are_data_and_nothing_is_loaded() -> None:
    page = written(fleet_profile(), "html")
    assert EVIL not in page and "<img" not in page and "\x1b" not in page
    assert data_of_page(page)["versions"][1][0] == EVIL.replace("\x1b", "\\x1b")
    assert not re.findall(r"""(?:src|href)=["']""", page.replace("xlink:href", ""))
    assert "default-src 'none'" in page


def test_damaged_recordings_are_listed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page_data, "SITES_MAX", 2)
    monkeypatch.setattr(fleet_page_data, "RECORDINGS_MAX", 2)
    rows = (*map(recording, range(5)), recording(7, RecordingState.BROKEN, "cut"))
    fleet = fleet_profile(sites=5, recordings=rows)
    data = data_of_page(written(fleet, "html"))
    assert [row["state"] for row in data["recordings"]] == ["broken", "ok"] and data["recordingsInAll"] == 6
    assert len(data["sites"]) == 2 and data["sitesLeftOut"][0] == 3
    listed = sum(site["mean"] for site in data["sites"])
    assert data["meanSpace"] == pytest.approx(listed + data["sitesLeftOut"][1])


def test_the_first_line_counts_answers() -> None:
    rows = [
        replace(recording(i), answer=answer) for i, answer in enumerate(("not_growing", "leaking", "leaking"))
    ]
    made = fleet_profile(recordings=(*rows, recording(4, RecordingState.BROKEN)))
    line = "LEAKING  2 of 3 recordings; 1 NOT GROWING"
    assert written(made, "text").splitlines()[0] == line
    page = data_of_page(written(made, "html"))
    assert (page["answer"], page["state"]) == (line, "leaking")
    assert json.loads(written(made, "json"))["answers"] == {"leaking": 2, "not_growing": 1}


def empty_fleet() -> FleetProfile:
    return fleet_profile(sites=0, recordings=(), versions=(), changes=(), only_on=(), notes=(), cache=())


def test_nothing_at_all() -> None:
    assert data_of_page(written(empty_fleet(), "html"))["meanSpace"] == 0


USE = """
const rows = (name) => [...document.querySelectorAll(`#table-${name} tbody tr`)].map((row) => row.textContent).join('|');
for (const name of ['sites', 'versions', 'changes', 'devices', 'recordings']) out(`rows-${name}`, rows(name));
out('dots', document.querySelectorAll('#prevalence circle').length);
document.querySelector('#prevalence circle').dispatchEvent(new MouseEvent('click'));
out('opened', document.querySelectorAll('tr.chosen ol.stack li').length);
openTab('devices');
out('visible', [...document.querySelectorAll('[role=tabpanel]')].filter((one) => !one.hidden).map((one) => one.id).join());
view.term = 'nothing like this';
drawAll();
out('unfound', rows('sites') + document.querySelectorAll('#table-changes tbody tr').length);
"""


@pytest.mark.proof
def test_as_a_browser_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    path.write_text(written(fleet_profile(), "html"))
    texts = chromium.dump(path, script=USE)
    assert texts["title"] == "com.example.app: 3 recordings" and "evil" not in texts
    assert (texts["counted"], texts["total-sites"], texts["not-well"]) == ("3", "3", "2")
    assert texts["mean-space"] == "2.69 KiB"  # 2,750.46 bytes
    assert texts["rows-sites"].startswith("1,5002 of 31,0002,0003,0002.5planted::open(int) ← main")
    assert texts["rows-changes"].startswith("+7501.0 → </script>") and "new" in texts["rows-changes"]
    assert "api level 33" in texts["rows-devices"] and texts["rows-recordings"].startswith("broken")
    shown = [texts[name] for name in ("dots", "opened", "visible", "unfound")]
    assert shown == ["3", "2", "view-devices", "0"]


@pytest.mark.proof
def test_an_empty_page_opens(tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    path.write_text(written(empty_fleet(), "html"))
    assert chromium.dump(path)["counted"] == "0"
