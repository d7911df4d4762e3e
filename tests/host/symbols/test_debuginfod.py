"""DEBUGINFOD_URLS, against a server on this machine."""

from pathlib import Path

import pytest

from memleak_android.host.symbols import debuginfod
from memleak_android.host.symbols.debug_files import Content, DebugFileSearch, open_elf
from memleak_android.host.symbols.debuginfod import Debuginfod, debuginfod_of
from tests.support.fakes.debuginfod_server import Served, asked_for, server


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
