"""`diff` as a user meets it: real runs under address space randomisation, one leak added, bad files."""

import json
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from tests.support.oracles.symbols import need
from tests.support.preload_session import find_parts
from tests.support.program_server import run_program

PROGRAM = """
#include <stdlib.h>
void *kept[64];
%s
static __attribute__((noinline)) void grow(int n) { for (int i = 0; i < n; i++) kept[i] = malloc(1009); }
int main(void) { grow(23); %s kept[60] = calloc(7, 11); return 0; }
"""
ADDED = "__attribute__((noinline)) static void leak(void) { kept[50] = malloc(61); }\n\n"


def measured(folder: Path, added: str, call: str) -> Path:
    """The report.json of one run of the program, which the loader maps anew each time."""
    find_parts()
    folder.mkdir()
    (folder / "program.c").write_text(PROGRAM % (added, call))
    subprocess.run([need("gcc"), "-g", "-O1", "-o", folder / "program", folder / "program.c"], check=True)
    words = ["--tracer", "preload", "-q", "-o", "result", "--", "./program"]
    run_program(words, folder).check_returncode()
    return folder / "result" / "report.json"


def test_same_program_elsewhere_in_memory_and_with_one_leak_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = measured(tmp_path / "1", "", "")
    again = measured(tmp_path / "2", "", "")
    leaking = measured(tmp_path / "3", ADDED, "leak();")  # the other lines move
    addresses = [json.loads(path.read_text())["sites"][0]["frames"][1]["address"] for path in (first, again)]
    assert addresses[0] != addresses[1]

    def diff(*words: object) -> str:
        assert run(["diff", *map(str, words)]) == 0
        return capsys.readouterr().out

    same = json.loads(diff(first, again, "--format", "json"))
    assert (same["sites"], same["unchanged_sites"] > 1) == ([], True)
    (site,) = json.loads(diff(first.with_name("recording.memleak"), leaking, "--format", "json"))["sites"]
    assert (site["change"], site["new"]) == ("new", {"space": 61, "objects": 1})
    assert [frame["function"] for frame in site["frames"][:3]] == ["malloc", "leak", "main"]
    (tmp_path / "3" / "program").unlink()  # as a rebuild does: of a folder, the report has the names
    text = diff(first.parent, leaking.parent)
    assert text.splitlines()[:4] == [
        "WORSE  holds 61 B more: places 1 new", "", "new    +61 bytes in +1 allocation", "       leak  3/program.c:4"
    ]  # fmt: skip
    assert "#1  leak" in diff("-v", first, leaking) and "#1" not in text
    assert "1 new, 0 grown, 0 shrunk, 0 gone" in text


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"{}", "is not a memleak-android/report/2 file: Object missing"), (b"", "old is empty; name a file")],
)
def test_other_files_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, error: str
) -> None:
    old = tmp_path / "old"
    old.write_bytes(content)
    assert run(["diff", str(old), str(old)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1) and error in printed.err
