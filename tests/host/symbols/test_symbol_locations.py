"""Where symbols come from: archives, the files that .gnu_debuglink names, DEBUGINFOD_URLS."""

import os
import subprocess
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.profile.profile import SymbolClass
from memleak_android.host.symbols import debug_files, debuginfod, symbol_locations
from memleak_android.host.symbols.debug_files import Content, DebugFileSearch, open_elf
from memleak_android.host.symbols.debuginfod import Debuginfod, debuginfod_of
from memleak_android.host.symbols.symbol_locations import SymbolLocation, build_ids
from memleak_android.host.symbols.symbol_table import SymbolTable
from memleak_android.host.symbols.symbolizer import NAMELESS, Symbolizer
from memleak_android.unwind.errors import BadElfError
from tests.support.fakes.debuginfod_server import Served, asked_for, server
from tests.support.oracles.symbols import INLINING_PROGRAM, FileModule, compile_cxx, need, text_vaddrs

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


NO_BUILD_ID = "--remove-section=.note.gnu.build-id"


def linked(program: Path, folder: Path, *options: str) -> tuple[FileModule, Path]:
    """A stripped program with a link, and the debug file beside it. options: for objcopy, of the program."""
    stripped, debug = folder / "program", folder / "program.debug"
    objcopy = need("objcopy")
    subprocess.run([objcopy, "--only-keep-debug", program, debug], check=True)
    link = f"--add-gnu-debuglink={debug}"
    subprocess.run([objcopy, "--strip-all", link, *options, program, stripped], check=True)
    return FileModule.open(stripped), debug


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what a CRC was computed of; more than 1 MB is not read."""
    sizes: list[int] = []
    crc32 = zlib.crc32

    def count(data: memoryview) -> int:
        sizes.append(len(data))
        return crc32(data[: 1 << 20])

    monkeypatch.setattr(debug_files.zlib, "crc32", count)
    return sizes


def test_a_build_id_spares_the_checksum(program: Path, checked: list[int], tmp_path: Path) -> None:
    module, _ = linked(program, tmp_path)
    assert Symbolizer().symbol_class(module) is SymbolClass.LINES
    assert checked == []


@pytest.mark.parametrize("options", [[], [NO_BUILD_ID]], ids=["build-id", "no build-id"])
def test_a_sparse_file_is_not_read_for_its_checksum(
    options: list[str], program: Path, checked: list[int], tmp_path: Path
) -> None:
    """It stores some kB, and reading what it claims to hold takes half an hour."""
    module, debug = linked(program, tmp_path, *options)
    if options:
        os.truncate(debug, 1 << 42)
        assert Symbolizer().symbol_class(module) is not SymbolClass.LINES
    else:
        other = tmp_path / "other"
        other.mkdir()
        _, unlike = linked(Path("/bin/true"), other)
        unlike.replace(debug)
        os.truncate(debug, 1 << 42)
        symbolizer = Symbolizer()
        assert symbolizer.symbol_class(module) is not SymbolClass.LINES
        assert str(debug) in " ".join(symbolizer.notes)
    assert checked == []


def test_a_module_without_memory_for_its_tables_has_no_names(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one of many: the session goes on."""
    table = SymbolTable

    def without_memory(files: list[object]) -> SymbolTable:
        if files:
            raise MemoryError
        return table([])

    monkeypatch.setattr("memleak_android.host.symbols.symbolizer.SymbolTable", without_memory)
    (chain,) = Symbolizer().resolve(FileModule.open(program), np.array([0x1000], np.uint64))
    assert chain == NAMELESS


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("without", ["debug file", "module", "debug file, module"])
def test_what_has_no_build_id_needs_the_checksum(
    without: str, is_changed: bool, program: Path, tmp_path: Path
) -> None:
    """The module's own build-id says nothing about a debug file that has none."""
    module, debug = tmp_path / "module", tmp_path / ".debug" / "program.debug"
    debug.parent.mkdir()
    link = f"--add-gnu-debuglink={debug}"
    for path, options in ((debug, ["--only-keep-debug"]), (module, ["--strip-all", link])):
        is_bare = ("debug file" if path == debug else "module") in without
        options += [NO_BUILD_ID] * is_bare
        subprocess.run([need("objcopy"), *options, program, path], check=True)
        assert (FileModule.open(path).build_id == "") == is_bare
    if is_changed:
        debug.write_bytes(debug.read_bytes() + b"x")
    symbolizer = Symbolizer()
    is_used = symbolizer.symbol_class(FileModule.open(module)) is SymbolClass.LINES
    assert is_used == (not is_changed)
    note = f"{debug} does not match the checksum in the .gnu_debuglink of module; not used"
    assert symbolizer.notes == ((note,) if is_changed else ())


def client(tmp_path: Path, *urls: str) -> Debuginfod:
    return debuginfod_of({"DEBUGINFOD_URLS": " ".join(urls)}, tmp_path / "cache")


def test_a_stripped_program_gets_its_lines(program: Path, stripped: Path, tmp_path: Path) -> None:
    build_id, elf = open_elf(program).build_id, open_elf(stripped)
    with server(Served({asked_for(build_id): program.read_bytes()})) as served:
        search = DebugFileSearch([], tmp_path / "none", client(tmp_path, f"{served.url}/"))
        found = search.find(str(stripped), build_id, elf)
        again = DebugFileSearch([], tmp_path / "none", client(tmp_path, served.url))
        assert again.find(str(stripped), build_id, elf)[0].content is Content.DEBUG_INFO
    assert [one.content for one in found] == [Content.DEBUG_INFO, Content.DYNSYM]
    assert found[0].location and found[0].location.path == tmp_path / "cache" / build_id / "debuginfo"
    assert served.asked == [asked_for(build_id)]  # then the cache has it
    assert search.notes == []


def test_files_with_lines_ask_no_server(program: Path, tmp_path: Path) -> None:
    with server(Served()) as served:
        search = DebugFileSearch([], tmp_path / "none", client(tmp_path, served.url))
        search.find(str(program), open_elf(program).build_id, open_elf(program))
    assert served.asked == []


def test_the_next_server_is_asked_and_each_once(tmp_path: Path) -> None:
    with server(Served()) as first, server(Served({asked_for("abcdef12"): b"x" * 100})) as second:
        asking = client(tmp_path, first.url, second.url)
        for _ in range(2):
            path = asking.find("abcdef12")
            assert path and path.read_bytes() == b"x" * 100
            assert asking.find("abcdef13") is None
        assert first.asked == second.asked == [asked_for("abcdef12"), asked_for("abcdef13")]
        assert asking.notes == []


def test_what_no_server_has_is_not_asked_for_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(Served()) as served:
        assert [client(tmp_path, served.url).find("abcdef12") for _ in range(3)] == [None] * 3
        assert served.asked == [asked_for("abcdef12")]
        monkeypatch.setattr(debuginfod, "MISS_S", 0.0)
        served.files[asked_for("abcdef12")] = b"x"
        assert client(tmp_path, served.url).find("abcdef12")


def test_another_files_debug_information_is_refused(program: Path, tmp_path: Path) -> None:
    wrong = "abcdef1234"
    with server(Served({asked_for(wrong): program.read_bytes()})) as served:
        search = DebugFileSearch([], tmp_path / "none", client(tmp_path, served.url))
        assert search.find("/srv/program", wrong, None) == []
    assert search.notes == [
        f"{tmp_path}/cache/{wrong}/debuginfo has build-id {open_elf(program).build_id}, program has {wrong}; not used"
    ]


@pytest.mark.parametrize("fault", ({"status": 500}, {"extra_length": 9}))
def test_a_server_that_fails_is_asked_no_more(fault: dict[str, int], tmp_path: Path) -> None:
    with server(Served({asked_for("abcdef12"): b"x" * 100}, **fault)) as served:
        asking = client(tmp_path, served.url)
        assert asking.find("abcdef12") is None and asking.find("abcdef13") is None
    assert served.asked == [asked_for("abcdef12")]
    (note,) = asking.notes
    assert note.startswith(f"{served.url} (DEBUGINFOD_URLS) is not asked any more: ")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_absent_server(tmp_path: Path) -> None:
    with server(Served()) as served:
        pass
    asking = client(tmp_path, served.url)
    assert asking.find("abcdef12") is None and len(asking.notes) == 1


def test_too_large_an_answer_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debuginfod, "MAX_BYTES", 99)
    with server(Served({asked_for("abcdef12"): b"x" * 100})) as served:
        asking = client(tmp_path, served.url)
        assert asking.find("abcdef12") is None
    assert "more than 99 bytes" in asking.notes[0]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("urls", ("", "file:///etc", "ftp://127.0.0.1/"))
def test_no_request_without_a_server(urls: str, tmp_path: Path) -> None:
    asking = client(tmp_path, urls)
    assert asking.servers == [] and asking.find("abcdef12") is None and asking.notes == []


def test_malformed_build_ids_are_not_requested(tmp_path: Path) -> None:
    with server(Served()) as served:
        assert client(tmp_path, served.url).find("../../etc/passwd") is None
    assert served.asked == []
