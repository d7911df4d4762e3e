"""`unwind perf.data`: stacks of running programs written as samples, against the stacks themselves."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import perf_data_writer as perf
from tests.support.builders.perf_data_writer import Attribute, comm, mmap2, sample
from tests.support.builders.sampled_program import ATTRIBUTE, Recorded
from tests.support.command_line import Finished, Unwind


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def unwind(unwind: Unwind, tmp_path: Path) -> Unwind:
    """The content is that of a perf.data."""

    def run_it(content: bytes, *options: str) -> Finished:
        (tmp_path / "perf.data").write_bytes(content)
        return unwind(tmp_path / "perf.data", *options)

    return run_it


def samples(done: Finished) -> list[dict[str, Any]]:
    return json.loads(done.out)["samples"]


def recording(one: Recorded, *samples: bytes, build_ids: dict[str, bytes] | None = None) -> bytes:
    return perf.seekable([ATTRIBUTE], [comm(7, 8, "ba sh", 0), *one.maps, *samples], build_ids=build_ids)


def test_json_has_the_stack_behind_the_kernels_frames(unwind: Unwind, recorded: Recorded) -> None:
    done = unwind(recording(recorded, recorded.at(1_000_002_003), recorded.at(2)), "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["schema"] == "memleak-android/unwind-samples/1"
    first, second = result["samples"]
    assert (first["time_ns"], second["time_ns"]) == (2, 1_000_002_003)
    assert (first["comm"], first["pid"], first["tid"], first["event"]) == ("ba sh", 7, 8, "clock")
    assert first["end"] == "ROOT" and first["arch"] == "x86_64"
    assert [int(frame["pc"], 16) for frame in first["frames"]] == [0xFFFF_FFFF_8000_1234, *recorded.lookups]
    assert first["frames"][0]["map_name"] == "[kernel.kallsyms]"
    names = [frame["function"] for frame in first["frames"]]
    assert "__libc_start_main" in names or "main" in names
    assert first["frames"] == second["frames"]


def test_text_is_laid_out_as_perf_does(unwind: Unwind, recorded: Recorded) -> None:
    done = unwind(recording(recorded, recorded.at(1_000_002_003)))
    lines = done.out.splitlines()
    assert lines[0] == "ba sh     8     1.000002: clock: "
    assert lines[1].startswith("\tffffffff80001234 ") and lines[1].endswith(" ([kernel.kallsyms])")
    assert lines[-1] == "" and "[truncated]" not in done.out
    assert len([line for line in lines if "(inlined)" not in line]) == 3 + len(recorded.lookups)


def test_a_cut_slice_is_marked_and_nothing_is_made_up(unwind: Unwind, recorded: Recorded) -> None:
    done = unwind(recording(recorded, recorded.at(1, keep=512)), "--json")
    (one,) = samples(done)
    found = [int(frame["pc"], 16) for frame in one["frames"][1:]]
    assert one["end"] == "STACK_TRUNCATED"
    assert 0 < len(found) < len(recorded.lookups) and found == recorded.lookups[: len(found)]
    text = unwind(recording(recorded, recorded.at(1, keep=512)))
    assert text.out.splitlines()[-2].strip() == "[truncated]"


def test_a_cut_stack_goes_on_by_another_sample_of_its_thread(unwind: Unwind, recorded: Recorded) -> None:
    content = recording(recorded, recorded.at(1), recorded.at(2, keep=512), recorded.at(3, keep=512, tid=9))
    done = unwind(content, "--join", "--json")
    whole, joined, of_another = json.loads(done.out)["samples"]
    assert whole["end"] == joined["end"] == "ROOT" and of_another["end"] == "STACK_TRUNCATED"
    for field in ("pc", "function"):
        assert [frame[field] for frame in joined["frames"]] == [frame[field] for frame in whole["frames"]]
    seen = len(of_another["frames"])
    is_joined = [frame["method"] == "joined" for frame in joined["frames"]]
    assert is_joined == [False] * seen + [True] * (len(whole["frames"]) - seen)
    assert "joined" not in [frame["method"] for frame in whole["frames"] + of_another["frames"]]
    assert done.err.startswith("memleak-android: 1 cut stacks go on by other samples of their threads")
    (without,) = {one["end"] for one in samples(unwind(content, "--json"))[1:]}
    assert without == "STACK_TRUNCATED"
    parts = unwind(content, "--join").out.rstrip("\n").split("\n\n")
    in_all, in_two = (part.splitlines()[1:] for part in parts[:2])
    at = [line.strip() for line in in_two].index("[joined]")
    assert 1 < at < len(in_all) and in_two[:at] + in_two[at + 1 :] == in_all


def test_folded_counts_equal_stacks(unwind: Unwind, recorded: Recorded) -> None:
    done = unwind(
        recording(recorded, *(recorded.at(n) for n in range(5)), recorded.at(9, keep=512)), "--folded"
    )
    cut, whole = done.out.splitlines()
    assert whole.startswith("ba sh;") and whole.endswith(" 5")
    assert cut.startswith("ba sh;[truncated];") and cut.endswith(" 1")
    assert whole.split(";")[-1].startswith("[[kernel.kallsyms]]") or "[" not in whole.split(";")[-1]


def test_a_file_of_another_build_is_not_used(unwind: Unwind, recorded: Recorded) -> None:
    libc = next(m.path for m in recorded.space.mappings if "libc.so" in m.path)
    done = unwind(recording(recorded, recorded.at(1), build_ids={libc: b"\x12" * 20}), "--json")
    (one,) = json.loads(done.out)["samples"]
    assert one["end"] != "ROOT"
    assert f"{libc} is not used: its build-id is" in done.err and len(done.err.splitlines()) == 1


def test_files_come_from_symbols_folders(unwind: Unwind, recorded: Recorded, tmp_path: Path) -> None:
    """Paths that do not exist here, as those of a device: found below the folder, or there by name."""
    moved = Recorded.__new__(Recorded)
    moved.__dict__ = dict(recorded.__dict__)
    moved.maps = []
    files = tmp_path / "files"
    for m in recorded.space.mappings:
        path = m.path
        if path.startswith("/") and m.is_executable:
            path = f"/device{m.path}"
            copy = files / (path[1:] if "libc" in path else os.path.basename(path))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(Path(m.path).read_bytes())
            if "libc" in path:
                decoy = files / "another" / copy.name
                decoy.parent.mkdir(exist_ok=True)
                decoy.write_bytes(Path("/bin/bash").read_bytes())
        moved.maps.append(
            mmap2(7, m.start, m.end - m.start, m.file_offset, path, 0, protection=5 if m.is_executable else 3)
        )
    content = recording(moved, moved.at(1))
    (without,) = samples(unwind(content, "--json"))
    (found,) = samples(unwind(content, "--json", "--symbols", str(files)))
    assert without["end"] != "ROOT"
    assert [int(frame["pc"], 16) for frame in found["frames"][1:]] == recorded.lookups


def test_a_cut_file_is_incomplete(unwind: Unwind, recorded: Recorded) -> None:
    content = perf.seekable([ATTRIBUTE], [*recorded.maps, recorded.at(1), recorded.at(2)])
    size = int.from_bytes(content[40:48], "little") + int.from_bytes(content[48:56], "little")
    done = unwind(content[: size - 100])
    assert done.code == 6 and "cut or damaged" in done.err
    assert done.out.count("clock:") == 1


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        (b"elephants", (), "it is not a perf.data"),
        (
            perf.seekable([Attribute(perf.IP | perf.TID | perf.TIME)], []),
            (),
            "no stacks that could be unwound",
        ),
        (perf.seekable([ATTRIBUTE], []), (), "holds no sample"),
        (perf.seekable([ATTRIBUTE], []), ("--no-memory",), "is for snapshot folders"),
        (perf.seekable([ATTRIBUTE], [sample(7, 1, b"")], machine="sparc"), (), "unsupported machine: sparc"),
    ],
)
def test_what_cannot_be_unwound_gives_one_line(
    unwind: Unwind, content: bytes, options: tuple[str, ...], line: str
) -> None:
    done = unwind(content, *options)
    assert done.code == 2 and not done.out
    assert line in done.err.splitlines()[-1]


def test_names_cannot_steer_a_terminal(unwind: Unwind, recorded: Recorded) -> None:
    content = perf.seekable([ATTRIBUTE], [comm(7, 8, "a\x1b[2J\nb", 0), *recorded.maps, recorded.at(1)])
    done = unwind(content)
    assert "\x1b" not in done.out and "a\\x1b[2J\\nb" in done.out
