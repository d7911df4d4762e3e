"""The HTML pages: self-contained, their sums those of the report, names harmless, size bounded."""

import hashlib
import io
import json
import re
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

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
from memleak_android.host.profile.profile import LeakKind, LeakSum, ThreadSum
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FLEET_FORMATS
from memleak_android.host.reports.html import fleet_data as fleet_page_data
from memleak_android.host.reports.html.flame_tree import FOLDED, WeightedStack, flat_tree
from memleak_android.host.reports.html.report import SCRIPTS, json_in_script
from tests.support.builders.profiles import CODEC, DECODE, PARTIAL, SERVER, empty_profile, frame, profile
from tests.support.oracles import chromium
from tests.support.written import data_of_page, difference, written_text

SPACE, OBJECTS = 101_211, 29  # of profile()

# As npm has them: d3@7.9.2 dist/d3.min.js, d3-flame-graph@5.0.0 dist/d3-flamegraph.umd.min.js.
SHA256 = {
    "d3-7.9.2.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
    "d3-flame-graph-5.0.0.min.js": "5f8d8bc7bf7f8329248d43c1e215431a88f77e17daa217f3c31b019b8b71b3f7",
}


page_of = partial(written_text, "html")


def test_sums_are_those_of_the_report() -> None:
    data = data_of_page(page_of(profile(threads=(ThreadSum(1, 2, 3, 5),))))
    assert data["totals"] == [SPACE, OBJECTS]
    for tree in data["trees"].values():
        assert [column[0] for column in tree["weights"]] == [SPACE, OBJECTS]
    sites = [site for site in data["sites"] if site["kind"] != "mmap"]
    assert [sum(site["weights"][i] for site in sites) for i in (0, 1)] == [SPACE, OBJECTS]
    assert [sum(row[1][i] for row in data["modules"]) for i in (0, 1)] == [SPACE, OBJECTS]
    assert data["threads"] == [[1, 2, 3, 5]]


def test_what_leads_to_the_blocks_is_said_of_each_stack_and_in_all() -> None:
    lost = (LeakSum(LeakKind.STILL_REACHABLE, 3, 1), LeakSum(LeakKind.DEFINITELY_LOST, 500, 2))
    text = "definitely lost 500 bytes in 2 allocations, still reachable 3 bytes in 1 allocation"
    data = data_of_page(page_of(profile(sites=(replace(DECODE, leaks=lost),), leaks=lost)))
    assert [site["leaks"] for site in data["sites"] if "leaks" in site] == [text]
    assert ["reachability", text] in data["facts"]
    assert not any("leaks" in site for site in data_of_page(page_of(profile()))["sites"])


def test_both_directions() -> None:
    data = data_of_page(page_of(profile(sites=(DECODE,))))

    def names(direction: str) -> list[str]:
        return [data["labels"][label][0] for label in data["trees"][direction]["label"] if label != FOLDED]

    stack = [
        "malloc", "planted::innermost(unsigned long)", "planted::decode(Packet const&)", "main",
        "__libc_start_main", "_start",
    ]  # fmt: skip
    assert names("inverted")[:6] == stack
    assert names("inward")[:6] == stack[::-1]


def test_nothing_is_loaded_and_the_libraries_are_those_of_notice() -> None:
    page = page_of(profile())
    assert not re.findall(r"""(?:src|href)=["']""", page.replace("xlink:href", ""))
    assert "default-src 'none'" in page
    folder = resources.files("memleak_android.host.reports.html").joinpath("web")
    assert {name for name in SCRIPTS if name.startswith("d3")} == SHA256.keys()
    for name, digest in SHA256.items():
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == digest
    notice = (Path(__file__).parents[4] / "NOTICE").read_text()
    assert all(digest in notice for digest in SHA256.values())


@pytest.mark.parametrize(
    "name",
    ["</script><script>alert(1)</script>", "<!--<script>", "\x1b[2J\u2028&amp;", "x\udcff", "y" * 1_000_000],
)
def test_names_cannot_leave_the_data(name: str) -> None:
    hostile = replace(frame(CODEC, "f"), function=name, file=name, line=5, module=f"/{name}")
    page = page_of(profile(sites=(replace(DECODE, frames=(hostile,)),), notes=(name,)))
    plain = page_of(profile(sites=(replace(DECODE, frames=(frame(CODEC, "f"),)),), notes=("n",)))
    assert page.count("<script") == plain.count("<script")
    assert page.count("</script") == plain.count("</script")
    assert len(page) < len(plain) + 12_000
    data_of_page(page)
    assert "\x1b" not in page


def test_json_in_script_is_the_same_json() -> None:
    data = {"<": "</script>&\u2028", "n": [1, 2.5, None]}
    text = json_in_script(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028") & set(text)


def test_a_comparison_holds_both_results() -> None:
    new = profile(sites=(replace(DECODE, inuse_space=25_225), PARTIAL))
    data = data_of_page(difference("html", profile(), new))
    assert data["isDiff"] is True
    assert data["totals"] == [25_225 + 997 + 207, 23 + 1 + 3, SPACE, OBJECTS]
    assert {site["id"]: site["change"] for site in data["sites"]}[DECODE.id] == "grown"


def test_nothing_outstanding() -> None:
    assert data_of_page(page_of(empty_profile()))["totals"] == [0, 0]


def test_trees_fold_what_is_small_and_lose_nothing() -> None:
    stacks = [WeightedStack((i % 7, i % 101, i), (i * i, 1)) for i in range(2_000)]
    tree = flat_tree(stacks, 2, nodes_max=100)
    assert [column[0] for column in tree.weights] == [sum(i * i for i in range(2_000)), 2_000]
    assert len(tree.parent) < 250
    assert FOLDED in tree.label[1:]
    for column in tree.weights:
        below = [0] * len(column)
        for node in range(1, len(column)):
            below[tree.parent[node]] += column[node]
        inner = set(tree.parent) - {-1}
        assert all(below[node] == column[node] for node in inner)
    assert all(parent < node for node, parent in enumerate(tree.parent))


def test_trees_of_more_stacks_than_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memleak_android.host.reports.html.flame_tree.STACKS_MAX", 10)
    tree = flat_tree([WeightedStack((i,), (i,)) for i in range(100)], 1)
    assert tree.weights[0][0] == sum(range(100))
    assert 90 in tree.folded


def test_what_was_left_out_and_what_is_folded_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memleak_android.host.reports.html.flame_tree.STACKS_MAX", 10)
    tree = flat_tree([WeightedStack((i,), (20 - i,)) for i in range(20)], 1, nodes_max=5)
    whole, *below = tree.weights[0]
    assert whole == sum(below) == sum(range(21))
    assert tree.label[1:].count(FOLDED) == 1
    assert sum(tree.folded) + len(below) - 1 == 20


def test_a_stack_of_thousands_of_frames() -> None:
    deep = replace(DECODE, frames=tuple(frame(SERVER, f"f{i}") for i in range(5_000)))
    data = data_of_page(page_of(profile(sites=(deep,))))
    assert data["trees"]["inward"]["weights"][0].count(DECODE.inuse_space) == 5_000


@pytest.mark.proof
def test_a_hundred_thousand_stacks_are_a_page_of_less_than_10_mb() -> None:
    def site(i: int) -> Any:
        frames = tuple(frame(SERVER, f"function_{i % (7 ** (d + 1))}_{d}") for d in range(12))
        return replace(DECODE, id=f"{i:016x}", inuse_space=i, inuse_objects=1, frames=frames)

    made = profile(sites=tuple(site(i) for i in range(100_000)))
    page = page_of(made)
    assert len(page) < 10_000_000
    assert data_of_page(page)["totals"][0] == sum(range(100_000)) + 207


EVIL = "</script><img src=x onerror=\"out('evil', 1)\"><b>\x1b[2J"
FRAMES = (frame(SERVER, "planted::open(int)"), frame(SERVER, "main"))


def recording_row(
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
            recording_row(1),
            recording_row(2, RecordingState.INCOMPLETE, "3 blocks lost", table_full=3, ring_full=1),
            recording_row(3, table_full=4),
            recording_row(4, RecordingState.BROKEN, EVIL),
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


def written_fleet(of: FleetProfile, format_: str) -> str:
    stream = io.BytesIO()
    FLEET_FORMATS[format_].write(of, stream, ReportOptions())
    return stream.getvalue().decode()


def test_sums_are_those_of_the_json() -> None:
    page = data_of_page(written_fleet(fleet_profile(), "html"))
    report = json.loads(written_fleet(fleet_profile(), "json"))
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
    page = data_of_page(written_fleet(fleet, "html"))
    assert ["lost: table_full", "7 in 2 recordings"] in page["facts"]
    assert page["recordings"][1]["lost"] == {"table_full": 3, "ring_full": 1}
    assert "lost: 7 table_full in 2 recordings" in written_fleet(fleet, "text")
    report = json.loads(written_fleet(fleet, "json"))
    losses = [{}, {"table_full": 3, "ring_full": 1}, {"table_full": 4}]
    assert [row["lost"] for row in report["recordings"][:3]] == losses


def test_names_are_data_and_nothing_is_loaded() -> None:
    page = written_fleet(fleet_profile(), "html")
    assert EVIL not in page and "<img" not in page and "\x1b" not in page
    assert data_of_page(page)["versions"][1][0] == EVIL.replace("\x1b", "\\x1b")
    assert not re.findall(r"""(?:src|href)=["']""", page.replace("xlink:href", ""))
    assert "default-src 'none'" in page


def test_damaged_recordings_are_listed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page_data, "SITES_MAX", 2)
    monkeypatch.setattr(fleet_page_data, "RECORDINGS_MAX", 2)
    rows = (*map(recording_row, range(5)), recording_row(7, RecordingState.BROKEN, "cut"))
    fleet = fleet_profile(sites=5, recordings=rows)
    data = data_of_page(written_fleet(fleet, "html"))
    assert [row["state"] for row in data["recordings"]] == ["broken", "ok"] and data["recordingsInAll"] == 6
    assert len(data["sites"]) == 2 and data["sitesLeftOut"][0] == 3
    listed = sum(site["mean"] for site in data["sites"])
    assert data["meanSpace"] == pytest.approx(listed + data["sitesLeftOut"][1])


def test_the_first_line_counts_answers() -> None:
    rows = [
        replace(recording_row(i), answer=answer)
        for i, answer in enumerate(("not_growing", "leaking", "leaking"))
    ]
    made = fleet_profile(recordings=(*rows, recording_row(4, RecordingState.BROKEN)))
    line = "LEAKING  2 of 3 recordings; 1 NOT GROWING"
    assert written_fleet(made, "text").splitlines()[0] == line
    page = data_of_page(written_fleet(made, "html"))
    assert (page["answer"], page["state"]) == (line, "leaking")
    assert json.loads(written_fleet(made, "json"))["answers"] == {"leaking": 2, "not_growing": 1}


def empty_fleet() -> FleetProfile:
    return fleet_profile(sites=0, recordings=(), versions=(), changes=(), only_on=(), notes=(), cache=())


def test_nothing_at_all() -> None:
    assert data_of_page(written_fleet(empty_fleet(), "html"))["meanSpace"] == 0


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
    path.write_text(written_fleet(fleet_profile(), "html"))
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
    path.write_text(written_fleet(empty_fleet(), "html"))
    assert chromium.dump(path)["counted"] == "0"
