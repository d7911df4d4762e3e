"""Other tools' formats, read by those tools or by their own schemas: every total is ours."""

import base64
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memleak_android.host.commands.results import write_file
from memleak_android.host.errors import UsageError
from memleak_android.host.profile.profile import Block, CallSite, Profile
from memleak_android.host.reports.base import NAME_MAX, ReportOptions
from memleak_android.host.reports.export.exported import GIVEN_BACK, UNATTRIBUTED, heap_sites
from memleak_android.host.reports.formats import FORMATS
from tests.support import npm_packages
from tests.support.builders.profiles import (
    DECODE,
    MALLOC,
    SERVER,
    counted_profile,
    empty_profile,
    frame,
    profile,
)
from tests.support.oracles import chromium
from tests.support.oracles.foreign_formats import go_pprof, heaptrack_print, npm_json, public_pprof
from tests.support.written import written

SPACE, OBJECTS = 101_211, 29  # of profile()


def with_blocks(of: Profile) -> Profile:
    """Every site's single blocks, of two sizes each, and no block without a stack."""
    sites = tuple(replace(site, blocks=_blocks(site), stderr_space=None) for site in of.sites)
    totals = of.totals
    held = replace(
        totals,
        inuse_space=totals.inuse_space - totals.unattributed_space,
        inuse_objects=totals.inuse_objects - totals.unattributed_objects,
        unattributed_space=0,
        unattributed_objects=0,
    )
    return replace(of, sites=sites, totals=held)


def _blocks(site: CallSite) -> tuple[Block, ...]:
    size, larger = divmod(site.inuse_space, site.inuse_objects)
    sizes = [size + (i < larger) for i in range(site.inuse_objects)]
    return tuple(Block(0x1000 * i, size, 5, 4711, 4711) for i, size in enumerate(sizes))


def sums(message: Any) -> dict[str, int]:
    names = [message.string_table[kind.type] for kind in message.sample_type]
    columns = zip(*(sample.value for sample in message.sample), strict=True)
    return dict(zip(names, map(sum, columns), strict=True))


def test_pprof_by_the_public_schema() -> None:
    message = public_pprof(written("pprof", counted_profile()))
    expected = {"alloc_objects": 1_009, "alloc_space": 1_000_003}
    assert sums(message) == {**expected, "inuse_objects": OBJECTS, "inuse_space": SPACE}
    text = message.string_table
    mapping = message.mapping[0]
    assert (text[mapping.filename], text[mapping.build_id]) == (SERVER, "aa01")
    assert (mapping.has_inline_frames, mapping.has_line_numbers) == (True, True)
    assert text[message.default_sample_type] == "inuse_space"
    names = {function.id: text[function.name] for function in message.function}
    inlined = next(location for location in message.location if len(location.line) > 1)
    lines = [(names[line.function_id], line.line) for line in inlined.line]
    assert lines == [("planted::innermost(unsigned long)", 14), ("planted::decode(Packet const&)", 22)]
    assert GIVEN_BACK in names.values()


def test_pprof_of_a_route_that_does_not_count_has_no_alloc_types() -> None:
    assert sums(public_pprof(written("pprof", profile()))) == {"inuse_objects": OBJECTS, "inuse_space": SPACE}


def test_pprof_of_nothing() -> None:
    message = public_pprof(written("pprof", empty_profile()))
    assert [message.string_table[kind.type] for kind in message.sample_type][-1] == "inuse_space"
    assert sums(message)["inuse_space"] == 0


@pytest.mark.proof
def test_pprof_by_go(tmp_path: Path) -> None:
    path = tmp_path / "report.pb.gz"
    path.write_bytes(written("pprof", counted_profile()))
    output = go_pprof(path, "-top", "-unit=bytes")
    assert "File: server" in output
    assert f"{SPACE}B total" in output
    assert "1000003B total" in go_pprof(path, "-top", "-unit=bytes", "-sample_index=alloc_space")
    assert "accounting for 0, 0% of" in go_pprof(path, "-top", f"-diff_base={path}")


@pytest.mark.parametrize(("sort", "total"), [("size", SPACE), ("count", OBJECTS)])
def test_folded(sort: str, total: int) -> None:
    lines = written("folded", profile(), sort=sort).decode().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == total
    stacks = [line.rpartition(" ")[0] for line in lines]
    assert UNATTRIBUTED in stacks
    decode = "planted::decode(Packet const&);planted::innermost(unsigned long);malloc"
    assert f"_start;__libc_start_main;main;{decode}" in stacks


def test_speedscope_by_its_own_schema() -> None:
    schema = npm_json("speedscope@1.25.0", "file-format-schema.json")
    made = json.loads(written("speedscope", profile()))
    jsonschema.validate(made, schema)
    for of, total in zip(made["profiles"], (SPACE, OBJECTS), strict=True):
        assert sum(of["weights"]) == of["endValue"] == total
        assert all(frame < len(made["shared"]["frames"]) for stack in of["samples"] for frame in stack)
    made["profiles"][0]["unit"] = "blocks"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, schema)


def opened(folder: Path, content: bytes) -> str:
    """The text of speedscope's page with the file loaded, as its own command line program hands files over."""
    app = folder / "speedscope"
    if not app.exists():
        shutil.copytree(npm_packages.folder("speedscope@1.25.0") / "package" / "dist" / "release", app)
    script = app / "file.js"
    script.write_text(f"speedscope.loadFileFromBase64('file', '{base64.b64encode(content).decode()}')\n")
    address = f"{(app / 'index.html').as_uri()}#localProfilePath={str(script).lstrip('/')}"
    return chromium.dom(address, folder / "chromium")


@pytest.mark.proof
def test_speedscope_opens_it(tmp_path: Path) -> None:
    content = written("speedscope", profile())
    page = opened(tmp_path, content)
    assert "outstanding bytes" in page
    assert "1/2" in page
    nothing = content.replace(b"outstanding bytes", b"another name")
    assert "outstanding bytes" not in opened(tmp_path, nothing)


@pytest.mark.parametrize("name", ["heaptrack.server.gz", "server.heaptrack"])
def test_heaptrack_by_heaptrack_print(name: str, tmp_path: Path) -> None:
    """It tells by the name whether a file is gzipped, and of a wrong one says that nothing was allocated."""
    made = with_blocks(profile())
    path = tmp_path / name
    write_file(path, FORMATS["heaptrack"], made, ReportOptions())
    output = heaptrack_print(path, "--print-leaks=1", "--print-histogram", str(tmp_path / "sizes"))
    assert f"total memory leaked: {made.totals.inuse_space / 1000:.2f}K" in output
    assert "planted::innermost(unsigned long)" in output
    assert "src/decode.cc:14" in output
    rows = (tmp_path / "sizes").read_text().split()
    sizes = dict(zip(map(int, rows[::2]), map(int, rows[1::2]), strict=True))
    assert sum(sizes.values()) == made.totals.inuse_objects
    assert sum(size * count for size, count in sizes.items()) == made.totals.inuse_space


def test_heaptrack_says_what_it_leaves_out() -> None:
    made = replace(with_blocks(profile()), totals=profile().totals)
    assert b"[left out: 207 bytes in 3 allocations without a stack]" in written("heaptrack", made)


def test_heaptrack_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(UsageError, match=r"23 blocks at site 00000000000dec0d, of which 2 are known singly"):
        written("heaptrack", profile(sites=(DECODE,)))
    sampled = replace(DECODE, stderr_space=5)
    with pytest.raises(UsageError, match="record without --sample-bytes"):
        written("heaptrack", profile(sites=(sampled,)))


@pytest.mark.parametrize("name", ["pprof", "folded", "speedscope", "heaptrack"])
def test_hostile_names_are_escaped_and_bounded(name: str) -> None:
    names = ("\x1b]0;owned\x07;\n", "x\udcff", "y" * 1_000_000)
    frames = (MALLOC, *(replace(frame(SERVER, n), file=n, module=f"/{n}") for n in names))
    made = with_blocks(profile(sites=(replace(DECODE, frames=frames),)))
    data = written(name, made)
    data = gzip.decompress(data) if name == "pprof" else data
    assert len(data) < 10 * NAME_MAX
    assert b"\x1b" not in data
    assert data.decode("utf-8", "replace").count("(1,000,000 characters)") >= 1


def test_formats_have_names_of_their_own() -> None:
    assert len({one.suffix for one in FORMATS.values()}) == len(FORMATS)


def test_mappings_are_not_counted_twice() -> None:
    assert {site.kind for site in heap_sites(profile())} == {"user", "runtime"}


@pytest.mark.parametrize("name", ["folded", "speedscope", "pprof"])
def test_what_was_freed_at_exit_is_in_no_heap_profile(name: str) -> None:
    """Its allocations of the whole time are unknown, and those of the others are not."""
    made = counted_profile()
    freed = replace(
        DECODE, frames=DECODE.frames[1:], inuse_space=0, inuse_objects=0, alloc_space=None, alloc_objects=None
    )
    assert written(name, replace(made, sites=(*made.sites, freed))) == written(name, made)
