"""Broken, cut, doubled and foreign recordings; stores that say no: each is listed with its reason, the rest goes on."""

import os
import shutil
import struct
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.fleet_report import make_fleet_profile
from memleak_android.host.fleet.processing import RECORDING_BYTES_MAX
from memleak_android.host.fleet.run import Worked
from memleak_android.host.profile.profile import Profile
from memleak_android.host.wire.blocks import Lost
from tests.support.builders.fleet_recordings import with_losses
from tests.support.fleet_runs import fleet, parts

WHOLE = ("00000.memleak", "00001.memleak", "00002.memleak")


@pytest.fixture
def shelf(farm: Path, tmp_path: Path) -> Path:
    """Three good recordings."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in WHOLE:
        shutil.copy(farm / name, folder / name)
    return folder


def mean_of(dataset: Path) -> Profile:
    keys = sorted(path.stem for path in (dataset / "recordings").iterdir())
    return make_fleet_profile(Dataset(str(dataset)), Worked(keys), [], time.time(), 0.0).mean


def test_each_with_its_reason(shelf: Path, tmp_path: Path) -> None:
    whole = (shelf / WHOLE[0]).read_bytes()
    (shelf / "half.memleak").write_bytes(whole[: len(whole) // 2])
    (shelf / "newer.memleak").write_bytes(whole[:8] + struct.pack("<I", 999) + whole[12:])
    (shelf / "empty.memleak").touch()
    (shelf / "text.memleak").write_text("nothing of ours\x1b[2J")
    (shelf / "z-copy.memleak").write_bytes(whole)
    (shelf / "deeper").mkdir()
    shutil.copy(shelf / WHOLE[1], shelf / "deeper" / WHOLE[0])  # the same name, and a copy of another one
    done = fleet(tmp_path / "dataset", shelf, tmp_path / "nowhere")
    assert done.code == 6, done.err  # something is missing
    reasons = {row["source"]: (row["state"], row["reason"]) for row in done.answer["recordings"]}
    assert all(reasons[str(shelf / name)] == ("ok", "") for name in WHOLE)
    assert reasons[str(shelf / "deeper" / WHOLE[0])] == ("duplicate", f"the same as {shelf / WHOLE[1]}")
    assert done.answer["counted"] == 3
    for name, state, reason in (
        ("half", "broken", "it is cut or damaged: "),
        ("newer", "broken", "version 999"),
        ("empty", "broken", "the recording is empty"),
        ("text", "broken", "not a memleak recording"),
        ("z-copy", "duplicate", f"the same as {shelf / WHOLE[0]}"),
    ):
        row = reasons[str(shelf / f"{name}.memleak")]
        assert row[0] == state and reason in row[1], (name, row)
    assert reasons[str(tmp_path / "nowhere")][0] == "broken"
    assert "No such file" in reasons[str(tmp_path / "nowhere")][1]


def test_a_partial_upload_is_processed_once_complete(shelf: Path, tmp_path: Path) -> None:
    late = shelf / "late.memleak"
    whole = (shelf / WHOLE[2]).read_bytes()
    (shelf / WHOLE[2]).unlink()
    late.write_bytes(whole[:2000])
    assert fleet(tmp_path / "dataset", shelf).states()["late.memleak"] == "broken"
    late.write_bytes(whole)
    os.utime(late, (1, 1))
    assert fleet(tmp_path / "dataset", shelf).states() == dict.fromkeys((*WHOLE[:2], "late.memleak"), "ok")


def test_nothing_is_worked_on_twice(shelf: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    first = fleet(dataset, shelf)
    times = {path: path.stat().st_mtime_ns for path in dataset.rglob("*.parquet")}
    again = fleet(dataset, shelf)
    assert again.answer == first.answer and len(times) == 6
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*.parquet")} == times


@pytest.mark.parametrize("option", ["--warmup", pytest.param("--cooldown", marks=pytest.mark.proof)])
def test_another_warm_up_is_another_part(shelf: Path, tmp_path: Path, option: str) -> None:
    fleet(tmp_path / "dataset", shelf)
    fleet(tmp_path / "dataset", shelf, option, "1s")
    assert len(parts(tmp_path / "dataset")) == 12


def test_losses_are_reported_by_cause(shelf: Path, tmp_path: Path) -> None:
    first, second = (shelf / name for name in WHOLE[:2])
    with_losses(first, first, {Lost.TABLE_FULL: 7})
    with_losses(second, second, {Lost.TABLE_FULL: 1, Lost.RING_FULL: 2})
    done = fleet(tmp_path / "dataset", shelf)
    states = dict(zip(WHOLE, ("incomplete", "incomplete", "ok"), strict=True))
    assert done.code == 6 and done.states() == states
    lost = {row["source"].rpartition("/")[2]: row["lost"] for row in done.answer["recordings"]}
    assert lost == {WHOLE[0]: {"table_full": 7}, WHOLE[1]: {"ring_full": 2, "table_full": 1}, WHOLE[2]: {}}
    # 2/3 and 8/3, no loss rounded away
    assert mean_of(tmp_path / "dataset").totals.lost == {"ring_full": 1, "table_full": 3}


AHEAD = "its clock said 2096-10-02, and is ahead of this machine's"


@pytest.mark.parametrize(
    ("said_s", "note"),
    [
        (1, "its clock said 1970-01-01, and was never set"),
        pytest.param(4_000_000_000, AHEAD, marks=pytest.mark.proof),
    ],
)
def test_disagreeing_clocks_are_reported_and_change_nothing(
    shelf: Path, tmp_path: Path, said_s: int, note: str
) -> None:
    """The newest version's, set back, would make it the oldest; the oldest one's, set ahead, the newest."""
    before = fleet(tmp_path / "before", shelf).answer
    wrong = shelf / (WHOLE[0] if said_s > time.time() else WHOLE[2])
    with_losses(wrong, wrong, {}, realtime_s=said_s)
    done = fleet(tmp_path / "dataset", shelf)
    after = done.answer
    assert done.code == 0 and after["counted"] == 3
    clocks = {row["source"]: (row["state"], row["reason"], row["clock"]) for row in after["recordings"]}
    assert clocks.pop(str(wrong)) == ("ok", "", note) and set(clocks.values()) == {("ok", "", "")}
    assert "clocks that disagree: those of 1 recording; nothing is ordered by time" in after["notes"]
    for name in ("versions", "sites", "changes", "only_on"):
        assert after[name] == before[name]
    taken = mean_of(tmp_path / "dataset").wall_clock_s
    assert time.time() - 86_400 < taken <= time.time(), "that of one that can be right"
    shown = tmp_path / "shown.txt"
    assert fleet(tmp_path / "dataset", shelf, "--format", "text", "-o", shown).code == 0
    assert f"1 with clocks that disagree, counted:\n  {wrong}: {note}\n" in shown.read_text()


def test_clocks_that_were_all_never_set(shelf: Path, tmp_path: Path) -> None:
    for name in WHOLE:
        with_losses(shelf / name, shelf / name, {}, realtime_s=1)
    assert fleet(tmp_path / "dataset", shelf).answer["counted"] == 3
    assert mean_of(tmp_path / "dataset").wall_clock_s > 86_400, "then it is the time of the report"


def test_archives_and_globs(shelf: Path, tmp_path: Path) -> None:
    plain = fleet(tmp_path / "a", shelf).answer
    archive = tmp_path / "night.zip"
    with zipfile.ZipFile(archive, "w") as into:
        for name in WHOLE:
            into.write(shelf / name, f"run/{name}")
    for number, source in enumerate((archive, shelf / "*.memleak")):
        other = fleet(tmp_path / f"b{number}", source).answer
        assert other["sites"] == plain["sites"] and other["counted"] == 3


def test_members_of_a_tar_that_are_no_files(shelf: Path, tmp_path: Path) -> None:
    archive = tmp_path / "night.tar"
    members = {
        "fifo": (tarfile.FIFOTYPE, ""), "device": (tarfile.CHRTYPE, ""), "dangling": (tarfile.SYMTYPE, "/dev/zero"),
        "loop": (tarfile.SYMTYPE, "loop.memleak"), "linked": (tarfile.LNKTYPE, WHOLE[0]),
    }  # fmt: skip
    with tarfile.open(archive, "w") as into:
        into.add(shelf / WHOLE[0], WHOLE[0])
        for name, (kind, target) in members.items():
            member = tarfile.TarInfo(f"{name}.memleak")
            member.type, member.linkname = kind, target
            into.addfile(member)
    rows = fleet(tmp_path / "dataset", archive).answer["recordings"]
    reasons = {row["source"].split("::")[0].rpartition("/")[2]: (row["state"], row["reason"]) for row in rows}
    irregular = dict.fromkeys(
        (f"{name}.memleak" for name in members if name != "linked"), ("broken", "not a regular file")
    )
    assert {name: reasons[name] for name in irregular} == irregular
    assert {reasons[WHOLE[0]][0], reasons["linked.memleak"][0]} == {"ok", "duplicate"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--engine", "spark"), "spark is not an engine; write local or dask://HOST:PORT"),
        pytest.param(
            ("--engine", "dask://127.0.0.1:1"),
            "no Dask scheduler answers at tcp://127.0.0.1:1",
            marks=pytest.mark.proof,
        ),
        (("--dataset", "/proc/none"), "could not open a dataset at /proc/none"),
    ],
)
def test_one_line(shelf: Path, tmp_path: Path, words: tuple[str, str], line: str) -> None:
    done = fleet(tmp_path / "dataset", shelf, *words)
    assert done.code == 2 and line in done.err and len(done.err.splitlines()) == 1


def test_a_foreign_file_is_not_read_to_its_end(shelf: Path, tmp_path: Path) -> None:
    """A larger one than is read has its first bytes as its reason, not its size."""
    with open(shelf / "huge.memleak", "wb") as huge:
        huge.truncate(RECORDING_BYTES_MAX + 1)
    rows = fleet(tmp_path / "dataset", shelf).answer["recordings"]
    (reason,) = (row["reason"] for row in rows if row["source"].endswith("huge.memleak"))
    assert reason == "the recording is not a memleak recording"


def test_nothing_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "x.memleak").write_text("no")
    done = fleet(tmp_path / "dataset", tmp_path / "x.memleak")
    assert done.code == 2 and "no recording can be used" in done.err and "x.memleak" in done.err


def test_a_limit_and_a_baseline_on_the_mean(shelf: Path, tmp_path: Path) -> None:
    """The baseline is a report.json, as of any recording: site ids are the same."""
    assert fleet(tmp_path / "d", shelf, "--fail-on-leak", "1").code == 23
    assert fleet(tmp_path / "d", shelf, "--fail-on-leak", "1G").code == 0
    baseline = tmp_path / "before.json"
    words = ["report", shelf / WHOLE[0], "--format", "json", "-o", baseline, "-q"]
    assert run(list(map(str, words))) == 0
    assert fleet(tmp_path / "d", shelf / WHOLE[0], "--baseline", baseline).code == 0
    assert fleet(tmp_path / "d", shelf / WHOLE[2], "--baseline", baseline).code == 23  # another version


def test_other_formats_show_the_mean(shelf: Path, tmp_path: Path) -> None:
    mean = tmp_path / "mean.sarif"
    assert fleet(tmp_path / "d", shelf, "-o", mean, "--format", "sarif").code == 0
    assert "means of 3 recordings" in mean.read_text()


def test_how_much_may_be_lost(shelf: Path, tmp_path: Path) -> None:
    (shelf / "broken.memleak").write_text("no")
    assert fleet(tmp_path / "d", shelf).code == 6
    assert fleet(tmp_path / "d", shelf, "--max-lost", "30%").code == 0
