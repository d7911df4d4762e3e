"""--symbols in APKs, AABs and zips: members found by build-id, others' refused by name, damaged archives passed over."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.symbols import symbol_locations
from memleak_android.host.symbols.debug_files import Content, DebugFileSearch, open_elf
from memleak_android.host.symbols.symbol_locations import SymbolLocation, build_ids
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.unwind.errors import BadElfError
from tests.support.oracles.symbols import INLINING_PROGRAM, FileModule, compile_cxx, text_vaddrs

MEMBERS = (
    "lib/x86_64/libapp.so",
    "BUNDLE-METADATA/com.android.tools.build.debugsymbols/x86_64/libapp.so.dbg",
    "x86_64/libapp.so.sym",
)


def archive(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def assert_named(stripped: Path, search: DebugFileSearch, whole: Path) -> None:
    """By what the search finds the stripped file has the names and lines of the whole one."""
    vaddrs = np.array(text_vaddrs(whole)[:200], np.uint64)
    found = Symbolizer(search=search).resolve(FileModule.open(stripped), vaddrs)
    assert found == Symbolizer(search=DebugFileSearch([whole])).resolve(FileModule.open(whole), vaddrs)
    assert any(frame.line for chain in found for frame in chain)


@pytest.mark.parametrize("packing", (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
@pytest.mark.parametrize(("suffix", "member"), list(zip((".apk", ".aab", ".zip"), MEMBERS, strict=True)))
def test_names_and_lines_out_of_an_archive(
    suffix: str, member: str, packing: int, program: Path, stripped: Path, tmp_path: Path
) -> None:
    members = {"AndroidManifest.xml": b"<x/>" * 100, "lib/": b"", member: program.read_bytes()}
    archive(tmp_path / f"app{suffix}", members, packing)
    search = DebugFileSearch([tmp_path])
    assert_named(stripped, search, program)
    assert search.notes == []


def test_the_member_of_another_build_is_refused_and_named(program: Path, tmp_path: Path) -> None:
    other = compile_cxx(
        INLINING_PROGRAM + "\nint one_more;\n", tmp_path / "other.so", "-Wl,--build-id=0xabcdef12"
    )
    app = archive(tmp_path / "app.apk", {MEMBERS[0]: other.read_bytes()})
    search = DebugFileSearch([app], system_dir=tmp_path / "none")
    wanted = open_elf(program).build_id
    assert search.find("/data/app/libapp.so", wanted, None) == []
    assert search.notes == [f"{app}!/{MEMBERS[0]} has build-id abcdef12, libapp.so has {wanted}; not used"]


def test_damaged_and_strange_archives_are_passed_over(program: Path, tmp_path: Path) -> None:
    good = archive(tmp_path / "good.apk", {MEMBERS[0]: program.read_bytes()}).read_bytes()
    (tmp_path / "empty.apk").write_bytes(b"")
    (tmp_path / "cut.apk").write_bytes(good[: len(good) // 2])
    (tmp_path / "text.zip").write_text("not an archive")
    damaged = bytearray(good)
    damaged[200:4000] = os.urandom(3800)
    (tmp_path / "damaged.apk").write_bytes(damaged)
    encrypted = bytearray(good)
    encrypted[6] |= 1
    encrypted[encrypted.rindex(b"PK\1\2") + 8] |= 1
    (tmp_path / "encrypted.apk").write_bytes(encrypted)
    search = DebugFileSearch([tmp_path])
    (found,) = search.find("/data/app/libapp.so", open_elf(program).build_id, None)
    assert found.location == SymbolLocation(tmp_path / "good.apk", MEMBERS[0])
    assert found.content is Content.DEBUG_INFO
    for name in ("cut", "damaged", "encrypted"):
        with pytest.raises(BadElfError):
            SymbolLocation(tmp_path / f"{name}.apk", MEMBERS[0]).open()


def test_a_member_beyond_the_limit_is_not_unpacked(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = archive(tmp_path / "app.apk", {MEMBERS[0]: program.read_bytes()})
    monkeypatch.setattr(symbol_locations, "MAX_READ_BYTES", program.stat().st_size - 1)
    with pytest.raises(BadElfError, match=r"has [\d,]+ bytes"):
        SymbolLocation(app, MEMBERS[0]).open()


def test_no_more_members_than_the_limit(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = archive(tmp_path / "app.apk", {f"{i}/libapp.so": program.read_bytes() for i in range(4)})
    assert len(list(build_ids(app))) == 4
    monkeypatch.setattr(symbol_locations, "MAX_MEMBERS", 3)
    assert len(list(build_ids(app))) == 3


def test_names_out_of_an_apk_in_what_bundletool_makes(program: Path, stripped: Path, tmp_path: Path) -> None:
    apk = archive(tmp_path / "base-x86_64.apk", {MEMBERS[0]: program.read_bytes()}).read_bytes()
    bundle = archive(
        tmp_path / "app.apks",
        {"toc.pb": b"x" * 99, "splits/damaged.apk": apk[:-200], "splits/base-x86_64.apk": apk},
        zipfile.ZIP_STORED,
    )
    (tmp_path / "base-x86_64.apk").unlink()
    ((location, _),) = build_ids(bundle)
    assert location == SymbolLocation(bundle, f"splits/base-x86_64.apk!/{MEMBERS[0]}")
    assert str(location) == f"{bundle}!/splits/base-x86_64.apk!/{MEMBERS[0]}"
    assert location.library == "libapp.so"
    assert_named(stripped, DebugFileSearch([tmp_path]), program)


def test_an_apks_within_an_apks_is_not_looked_into(program: Path, tmp_path: Path) -> None:
    """One level and no more: a file that holds itself ends."""
    apk = archive(tmp_path / "inner.apk", {MEMBERS[0]: program.read_bytes()}).read_bytes()
    middle = archive(tmp_path / "middle.apk", {"inner.apk": apk}).read_bytes()
    assert not list(build_ids(archive(tmp_path / "outer.apks", {"middle.apk": middle})))


def test_a_name_that_looks_like_a_member_of_a_member(program: Path, tmp_path: Path) -> None:
    odd = archive(tmp_path / "odd.zip", {"a.apk!/libapp.so": program.read_bytes()})
    ((location, build_id),) = build_ids(odd)
    assert location.open().build_id == build_id
