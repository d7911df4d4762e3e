"""The HTML page: whole and self-contained, its sums those of the report, names harmless, size bounded."""

import hashlib
import json
import re
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.profile.profile import LeakKind, LeakSum, ThreadSum
from memleak_android.host.reports.html.flame_tree import FOLDED, WeightedStack, flat_tree
from memleak_android.host.reports.html.report import SCRIPTS, json_in_script
from tests.support.builders.profiles import CODEC, DECODE, PARTIAL, SERVER, empty_profile, frame, profile
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
