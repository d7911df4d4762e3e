"""The HTML page as a browser shows it: totals, tabs, search, keyboard, in headless Chromium without a network."""

from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend
from memleak_android.host.profile.profile import (
    CallSite,
    Instant,
    LeakKind,
    LeakSum,
    Profile,
    SiteSum,
    ThreadSum,
)
from tests.support.builders.profiles import CODEC, DECODE, SERVER, frame, profile
from tests.support.oracles import chromium
from tests.support.written import difference
from tests.support.written import written as written_bytes

pytestmark = pytest.mark.proof


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return written(tmp_path, profile(threads=(ThreadSum(4711, 4712, 101_211, 29),)))


def written(folder: Path, of: Profile) -> Path:
    path = folder / "report.html"
    path.write_bytes(written_bytes("html", of))
    return path


USE = """
const graph = document.getElementById('flame');
const key = (name) => graph.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
out('root', describe(rootFrame()));
for (const name of ['Home', 'ArrowDown', 'ArrowRight', 'ArrowDown']) key(name);
out('inner', document.getElementById('details').textContent);
const active = document.getElementById(graph.getAttribute('aria-activedescendant'));
out('active', active.getAttribute('role') + ' ' + active.getAttribute('aria-label'));
key('Enter');
key('Escape');
out('after', String(graph.getAttribute('aria-activedescendant')));
view.term = 'planted::decode';
searchFlame();
tables.sites();
out('found-text', document.getElementById('found').textContent);
out('found-rows', document.querySelectorAll('#view-sites tbody tr').length);
document.querySelector('#view-sites td.name button').click();
out('stack', [...document.querySelectorAll('#view-sites ol li')].map((one) => one.textContent).join('|'));
document.getElementById('tab-threads').click();
out('open', [...document.querySelectorAll('[role=tabpanel]')].filter((one) => !one.hidden).map((one) => one.id).join());
"""


def test_totals_keyboard_search_and_tabs(page: Path) -> None:
    texts = chromium.dump(page, script=USE)
    assert (texts["total-space"], texts["total-objects"], texts["total-sites"]) == ("98.8 KiB", "29", "6")
    assert texts["root"] == "all: 98.8 KiB in 29 allocations, 100.0 % of all"
    assert texts["inner"].startswith("main [server]: 22.7 KiB in 23 allocations, 22.9 % of all")
    assert texts["active"] == f"treeitem {texts['inner']}"
    assert texts["after"] == "null"
    assert texts["found-text"] == "22.7 KiB, 22.9 %"
    assert texts["found-rows"] == "1"
    assert texts["stack"].split("|")[2] == "planted::decode(Packet const&)+0x1c  src/decode.cc:22 [server]"
    assert texts["open"] == "view-threads"
    assert "4712" in texts["view-threads"]
    assert "101,211" in texts["view-threads"]


def test_growth_is_a_column_that_sorts(tmp_path: Path) -> None:
    def judged(site: CallSite, trend: Trend, bytes_per_s: float) -> CallSite:
        return replace(site, growth=Growth(trend, bytes_per_s, bytes_per_s, bytes_per_s, 10**9, 5_000))

    sites = (judged(DECODE, Trend.GROWS, 500.0), judged(replace(DECODE, id="b"), Trend.GROWS, 900.0))
    sites += (judged(replace(DECODE, id="c"), Trend.BURST, 7_000.0),)
    made = profile(sites=sites, growth_span=GrowthSpan(10**9, 23 * 10**9, 7, 5))
    script = """
      const heads = [...document.querySelectorAll('#view-sites th button')];
      const growth = heads.findIndex((one) => one.textContent === 'growth');
      heads[growth].click();
      out('cells', [...document.querySelectorAll('#view-sites tbody tr')].map((row) => row.children[growth].textContent).join('|'));
      out('facts', document.body.textContent);
    """
    texts = chromium.dump(written(tmp_path, made), "growth", script)
    rates = "52.73 ± 0.00 KiB/min since 0:01|29.30 ± 0.00 KiB/min since 0:01"
    assert texts["cells"] == f"{rates}|rose in one step|"  # the last row: without a stack
    assert "2 stacks grow by 82.03 ± 0.00 KiB/min" in texts["facts"]


def test_places_come_first_and_libraries_are_folded(tmp_path: Path) -> None:
    """The table fits a narrow page. A click on a place's name shows its stacks."""
    library = [frame(SERVER, f"std::call{i}") for i in range(3)]
    frames = (*DECODE.frames[:2], *library, *DECODE.frames[2:])
    grown = Growth(Trend.GROWS, 500.0, 450.0, 550.0, 10**9, 5_000)
    place = Place(
        "planted::innermost(unsigned long)",
        SERVER,
        "user",
        23_207,
        23,
        1,
        growth=grown,
        file="/src/a/decode.cc",
        line=14,
    )
    made = profile(
        sites=(replace(DECODE, frames=frames, place=0),),
        places=(place,),
        growth_span=GrowthSpan(10**9, 23 * 10**9, 7, 5),
    )
    script = """
      out('cells', [...document.querySelectorAll('#places td')].map((one) => one.textContent).join('|'));
      document.querySelector('#places td button').click();
      out('stacks', document.querySelectorAll('#view-sites tbody tr').length + ' ' + document.getElementById('search').value);
      const names = () => frames().data().map((d) => d.data.name);
      openTab('flame');
      out('folded', names().filter((one) => /std::|⋮ serv/.test(one)).join());
      document.getElementById('folds').click();
      out('whole', names().filter((one) => /std::|⋮/.test(one)).join());
      document.body.style.width = '640px';
      out('wide', document.querySelector('#places table').offsetWidth > 640);
    """
    texts = chromium.dump(written(tmp_path, made), script=script)
    assert texts["cells"] == "29.3 ± 2.9 KiB/min|22.7 KiB|23|100.0 %|planted::innermost|a/decode.cc:14"
    assert texts["stacks"] == "1 planted::innermost(unsigned long)"
    assert texts["folded"] == "⋮ server,⋮ server", "the start and std::call2 to call0"
    assert texts["whole"] == "std::call2,std::call1,std::call0"
    assert texts["wide"] == "false"


def test_what_leads_to_the_blocks_is_a_tag_of_the_stack(tmp_path: Path) -> None:
    lost = (LeakSum(LeakKind.DEFINITELY_LOST, 500, 2),)
    made = profile(sites=(replace(DECODE, leaks=lost),), leaks=lost)
    script = """
      out('tags', [...document.querySelectorAll('#view-sites .tag')].map((one) => one.textContent).join('|'));
      out('facts', document.body.textContent);
    """
    texts = chromium.dump(written(tmp_path, made), "leaks", script)
    assert "definitely lost 500 bytes in 2 allocations" in texts["tags"].split("|")
    assert "reachability" in texts["facts"]


def test_rows_with_all_columns_stay_low(tmp_path: Path) -> None:
    """Ages beside tags of two kinds once stood in a column of a word's width: a row was eleven lines high."""
    grown = Growth(Trend.GROWS, 322_666.7, 319_000.0, 326_000.0, 10**9, 4_451_328)
    kinds = (LeakSum(LeakKind.POSSIBLY_LOST, 5_440, 17), LeakSum(LeakKind.DEFINITELY_LOST, 1_927_680, 6_024))
    one = replace(DECODE, growth=grown, leaks=kinds, ages=(423, 3_931, 1_694, 0, 0, 0))
    path = written(tmp_path, profile(sites=(one,), growth_span=GrowthSpan(10**9, 14 * 10**9, 15, 5)))
    rows = "[...document.querySelectorAll('#view-sites tbody tr')].map((row) => row.offsetHeight)"
    assert 0 < int(chromium.dump(path, "sites", f"out('height', Math.max(...{rows}));")["height"]) < 130


def test_inverted_by_objects(page: Path) -> None:
    script = "view.by = 1; drawAll(); out('width', rootFrame().children.map((d) => d.data.name + ' ' + d.value).join('|'));"
    texts = chromium.dump(page, "inverted", script)
    assert texts["width"].startswith("malloc 26|[unattributed: no stack was captured] 3")


def test_timeline(tmp_path: Path) -> None:
    held = SiteSum(DECODE.id, 1_000, 3)
    timeline = (
        Instant(10**9, 5_000, 7, (held,)),
        Instant(3 * 10**9, 9_000, 11, (replace(held, space=6_000),)),
    )
    script = """
      out('names', [...document.querySelectorAll('#view-timeline .legend span')].map((one) => one.textContent));
      out('areas', document.querySelectorAll('#view-timeline path[fill]').length);
      out('cells', [...document.querySelectorAll('#view-timeline td')].map((one) => one.textContent).join(' '));
    """
    texts = chromium.dump(written(tmp_path, profile(timeline=timeline)), "timeline", script)
    assert texts["names"] == "planted::innermost(unsigned long),others"
    assert int(texts["areas"]) >= 2
    assert texts["cells"] == "1 5,000 1,000 4,000 3 9,000 6,000 3,000"


def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=document.title='owned'><b>&lt;"
    hostile = replace(frame(CODEC, "f"), function=name, module=f"/{name}")
    made = profile(sites=(replace(DECODE, frames=(hostile,)),), notes=(name,))
    script = (
        "out('tags', document.querySelectorAll('img, b').length);"
        "out('title-now', document.title); out('shown', rootFrame().children[0].data.name);"
    )
    texts = chromium.dump(written(tmp_path, made), script=script)
    assert (texts["tags"], texts["shown"]) == ("0", name)
    assert "owned" not in texts["title-now"]


def test_a_comparison_is_coloured(tmp_path: Path) -> None:
    new = profile(sites=(replace(DECODE, inuse_space=46_414), *profile().sites[3:]))
    path = tmp_path / "diff.html"
    path.write_text(difference("html", profile(), new))
    script = """
      const grown = data.sites.find((site) => site.change === 'grown');
      out('grown', growthColour(grown.weights)); out('same', growthColour([5, 1, 5, 1]));
      out('cell', changeCell(grown.weights).textContent);
    """
    texts = chromium.dump(path, script=script)
    assert texts["grown"] == "rgb(247,148,148)"
    assert texts["same"] == "#eceff3"
    assert texts["cell"] == "+23,207"
    assert "→" in texts["flame"] or texts["legend"] == "grownas beforeshrunk"
