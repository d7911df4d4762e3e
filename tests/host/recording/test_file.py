"""Recordings: permissions, cuts, other versions, full disks, gzip."""

import gzip
import json
import os
import resource
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import ExitCode, OutputExistsError, RecordingError
from memleak_android.host.recording.file import FILE_HEADER, Recording, RecordingWriter, write_finished
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.wire.blocks import Block, BrokenStream
from tests.support.builders import blocks as builders
from tests.support.builders.profiles import profile
from tests.support.command_line import CommandLine
from tests.support.written import written

BLOCKS = [Block(10, b"first\0\0\0"), Block(10, bytes(4096)), Block(12, bytes(16))]


def test_file_header_literally() -> None:
    assert bytes.fromhex("4d454d4c45414b00 02000000 00000000") == FILE_HEADER


def test_readable_by_the_user_only_and_after_each_block(tmp_path: Path) -> None:
    path = tmp_path / "a.memleak"
    before = os.umask(0)
    try:
        writer = RecordingWriter(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    offsets = []
    for n, block in enumerate(BLOCKS, 1):
        offsets.append(writer.write(block))
        assert [b for _, b in Recording(path).blocks()] == BLOCKS[:n]
    assert [writer.read_block(offset) for offset in offsets] == BLOCKS
    assert [offset for offset, _ in Recording(path).blocks()] == offsets


def test_existing_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.memleak"
    path.write_text("mine")
    with pytest.raises(OutputExistsError) as caught:
        RecordingWriter(path)
    assert str(caught.value) == f"{path} exists, not overwritten; use --force or another name"
    assert path.read_text() == "mine"


@pytest.mark.parametrize("size", [40, 41, 55, 56, 57, 4135, 4152, 4167])
def test_cut_anywhere(tmp_path: Path, size: int) -> None:
    path = builders.write_recording(tmp_path / "a.memleak", BLOCKS)
    assert path.stat().st_size == 16 + 24 + 4112 + 32
    os.truncate(path, size)
    recording = Recording(path)
    found = [block for _, block in recording.blocks()]
    assert found == BLOCKS[: 1 if size < 4152 else 2]
    is_clean = size in (40, 4152)
    assert (recording.broken is None) == is_clean
    if recording.broken:
        assert recording.broken.offset == (40 if size < 4152 else 4152)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "{} is empty; name a file that `memleak-android record` wrote"),
        (b"\x7fELF" * 100, "{} is not a memleak recording; name a file that `memleak-android record` wrote"),
        (b"MEMLEAK\0", "{} is not a memleak recording; name a file that `memleak-android record` wrote"),
        (
            b"MEMLEAK\0\x07" + bytes(7),
            "{} is a recording of version 7, this program reads version 2; use the memleak-android that recorded it",
        ),
        (FILE_HEADER, "{} holds no readable block: it ends after its header; record again"),
        (
            FILE_HEADER + b"x" * 99,
            "{} holds no readable block: magic is 0x78787878, not 0x314b4c4d; record again",
        ),
    ],
)
def test_nothing_readable(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "a.memleak"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as caught:
        list(Recording(path).blocks())
    assert str(caught.value) == line.format(path)
    assert caught.value.exit_code == 2


def test_file_that_became_shorter_is_a_typed_error(tmp_path: Path) -> None:
    path = builders.write_recording(tmp_path / "a.memleak", BLOCKS)
    recording = Recording(path)
    os.truncate(path, 60)
    for offset in (40, 100):
        with pytest.raises(BrokenStream):
            recording.read_block(offset)


def test_full_disk_keeps_whole_blocks(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk: write() fails in the middle of a block in the same way."""
    writer = RecordingWriter(tmp_path / "a.memleak")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        offsets = [writer.write(block) for block in BLOCKS]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert offsets == [16, -1, -1]
    assert writer.failure is not None
    recording = Recording(writer.path)
    assert [block for _, block in recording.blocks()] == BLOCKS[:1]
    assert recording.broken is None


def test_finished_recording_replaces_in_one_step(tmp_path: Path) -> None:
    path = builders.write_recording(tmp_path / "a.memleak", BLOCKS)

    def failing() -> object:
        yield BLOCKS[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_finished(path, failing())  # type: ignore[arg-type]
    assert [block for _, block in Recording(path).blocks()] == BLOCKS
    write_finished(path, BLOCKS[:1])
    assert [block for _, block in Recording(path).blocks()] == BLOCKS[:1]
    assert os.listdir(tmp_path) == ["a.memleak"]


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
            gzip.compress(b'{"schema": "memleak-android/report/3"}'),
            "was written by another version (memleak-android/report/3; this one reads",
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
