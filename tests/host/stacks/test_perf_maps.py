"""Names of generated code by perf maps, and programs of others that write them."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.stacks.perf_maps import (
    Named,
    PerfMap,
    PerfMaps,
    jit_module,
    parse_name,
    read_local,
    recorded_functions,
)
from tests.support.workloads import run, run_program

PROGRAM = """
const held = [];
function handle(size) { held.push(Buffer.alloc(size, 1)); }
let n = 0;
setInterval(() => { handle(70001); if (++n == 200) process.reallyExit(0); }, 10);
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("JS:*handle /srv/app.js:12:3", Named("handle", "/srv/app.js", 12)),
        ("LazyCompile:~get node:internal/url:7:1", Named("get", "node:internal/url", 7)),
        ("JS:^ file:///srv/a%20b.mjs:10:26", Named("(anonymous)", "/srv/a%20b.mjs", 10)),
        ("Script:~ /srv/app.js:1:1", Named("(anonymous)", "/srv/app.js", 1)),
        ("py::serve:/srv/app.py", Named("serve", "/srv/app.py")),
        ("Builtin:JSEntry", Named("Builtin:JSEntry")),
        ("void [app] Shop.Cart::Add(int32)[Tier1]", Named("void [app] Shop.Cart::Add(int32)[Tier1]")),
    ],
)
def test_names_of_compilers(text: str, expected: Named) -> None:
    assert parse_name(text) == expected


def test_the_last_line_for_an_address_holds() -> None:
    made = PerfMap(b"1000 10 old\n2000 20 b c\n1000 8 new\n\nx y z\n3000\n")
    found = [made.find(address) for address in (0xFFF, 0x1000, 0x1007, 0x1008, 0x201F, 0x2020, 0x3000)]
    assert found == [None, "new", "new", None, "b c", None, None]


def test_a_map_that_grows_is_read_again_in_the_next_batch() -> None:
    """A compiler that goes on writing would have it read for each address."""
    text = b"1000 10 first\n"
    maps = PerfMaps(lambda pid, known: (text, len(text)) if known != len(text) else None)
    assert (maps.vaddr(7, 0x1000), maps.vaddr(7, 0x2000)) == (0, None)
    text += b"2000 10 second\n"
    assert (maps.vaddr(7, 0x2000), maps.vaddr(7, 0x1004)) == (None, 0)
    maps.begin_batch()
    assert (maps.vaddr(7, 0x2000), maps.vaddr(7, 0x1004)) == (1, 0)
    resolved = maps.module.resolve(np.array([0, 1, 2], np.uint64))
    assert [frames[0].function for frames in resolved] == ["first", "second", ""]


def test_only_its_own_user_names_a_process_s_code(tmp_path: Path) -> None:
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    try:
        path.write_text("1000 10 f\n")
        assert read_local(os.getpid(), None) == (b"1000 10 f\n", (path.stat().st_ino, 10))
        assert read_local(os.getpid(), (path.stat().st_ino, 10)) is None
        path.unlink()
        path.symlink_to(__file__)
        assert read_local(os.getpid(), None) is None
        path.unlink()
        path.write_text("1000 10 f\n")
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
            assert read_local(os.getpid(), None) is None
    finally:
        path.unlink()
    assert read_local(2**22 + 1, None) is None


@pytest.mark.parametrize(
    "rows", [None, 3, [["f", "x", 1], ["g", "x", "1"], ["h", "x", 2]], [["f", "x", 1], []]]
)
def test_recorded_functions_may_be_anything(rows: object) -> None:
    assert recorded_functions(rows) == ([Named("f", "x", 1)] if isinstance(rows, list) else [])
    assert len(jit_module(recorded_functions(rows)).resolve(np.array([9], np.uint64))) == 1


def test_functions_of_node(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    (tmp_path / "app.js").write_text(PROGRAM)
    options = ("--perf-basic-prof", "--interpreted-frames-native-stack")
    recording = tmp_path / "x.memleak"
    words = ("--", node, *options, tmp_path / "app.js")
    run("preload", tmp_path, *words, options=["-o", recording], codes=(0, 6))
    run_program(["report", recording, "-o", tmp_path / "x.json"], tmp_path, None, 280)
    sites = json.loads((tmp_path / "x.json").read_text())["sites"]
    of_handle = [
        frame
        for site in sites
        if site["inuse_space"] >= 70001
        for frame in site["frames"]
        if frame["function"] == "handle"
    ]
    assert {(frame["file"], frame["line"]) for frame in of_handle} == {(str(tmp_path / "app.js"), 3)}


def test_a_line_beyond_all_numbers_is_part_of_the_name() -> None:
    file = f"a.js:{'9' * 5000}:1"  # int() refuses as many digits
    assert parse_name(f"JS:*f {file}") == ("f", file, 0)
