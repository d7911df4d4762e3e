"""A name that ends in .gz: the same text packed, read back by `report` and `diff`; what is no whole gzip file gets one line."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import ExitCode
from memleak_android.host.reports.formats import FORMATS
from tests.support.builders.profiles import profile
from tests.support.command_line import CommandLine
from tests.support.written import written


def test_the_same_report_packed(line: CommandLine) -> None:
    assert line.run("--tracer", "preload", "-o", "out", "--json", "a.json.gz", "--", "true").code == 0
    packed, plain = line.folder / "a.json.gz", line.folder / "out" / "report.json"
    assert (
        subprocess.run(["gzip", "-dc", packed], capture_output=True, check=True).stdout == plain.read_bytes()
    )
    texts = [line.run("report", "-v", path).out for path in (packed, plain)]
    assert texts[0] == texts[1] and "60 bytes in 3 allocations" in texts[0]
    assert json.loads(line.run("diff", packed, plain, "--format", "json").out)["sites"] == []
    limited = line.run("report", packed, "--baseline", packed, "--fail-on-leak", "1")
    assert limited.code == 0


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if not form.is_binary])
def test_every_text(tmp_path: Path, name: str) -> None:
    report, plain, packed = (tmp_path / file for file in ("a.json", "b", "b.gz"))
    report.write_bytes(written("json", profile()))
    for path in (plain, packed):
        assert run(["report", str(report), "--format", name, "-o", str(path)]) == ExitCode.INCOMPLETE
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes() != b""


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (gzip.compress(b'{"schema": "memleak-android/report/1"' + b" " * 9999)[:-9], "cannot be read: "),
        (
            gzip.compress(b'{"schema": "memleak-android/report/2"}'),
            "was written by another version (memleak-android/report/2; this one reads 1)",
        ),
        (gzip.compress(b"heaptrack"), "is not a memleak recording"),
        (b"\x1f\x8b\x08\x00nonsense", "is not a memleak recording"),
    ],
    # gzip writes the time of day into what it packs: two workers that collect it must call it the same
    ids=["cut", "another schema", "another content", "no gzip"],
)
def test_files_that_are_not_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, error: str
) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(content)
    assert run(["report", str(path)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert error in printed.err, printed.err


def test_one_that_unpacks_to_more_than_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memleak_android.host.recording.read.REPORT_BYTES_MAX", 1000)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"{" + b" " * (1 << 20)))
    assert run(["report", str(path)]) == 2
    assert "is larger than 1,000 bytes; use the recording" in capsys.readouterr().err
