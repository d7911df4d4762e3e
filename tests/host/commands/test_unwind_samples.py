"""`unwind perf.data`: stacks of running programs written as samples, against the stacks themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.unwind import TraceBatch, unwind_batch
from tests.support.builders import perf_data_writer as perf
from tests.support.builders.perf_data_writer import Attribute, comm, mmap2, sample, stack_part, words
from tests.support.command_line import Finished
from tests.support.running_program import blocked
from tests.support.stack_capture import capture, sample_batch

KERNEL_CHAIN = words(2, (1 << 64) - 128, 0xFFFF_FFFF_8000_1234)
ATTRIBUTE = Attribute(perf.SIMPLE | perf.CALLCHAIN, name="clock")


class Recorded:
    """One stack of a blocked program, its truth, and its bytes as a sample."""

    def __init__(self) -> None:
        with blocked(["/bin/bash", "-c", "f() { read x; }; f"]) as pid:
            self.stack, self.space, modules = capture(pid)
        batch = sample_batch([self.stack])
        self.truth: TraceBatch = unwind_batch(batch, [self.space], modules)
        self.maps = [
            mmap2(7, m.start, m.end - m.start, m.file_offset, m.path or "//anon", 0, protection=5 if m.is_executable else 3, inode=m.inode)
            for m in self.space.mappings
        ]  # fmt: skip

    def at(self, time: int, keep: int = 1 << 20, tid: int = 8) -> bytes:
        registers = [0] * 24
        for number, value in zip(perf.X86_64_PT_REGS, self.stack.registers, strict=True):
            if number is not None:
                registers[number] = value
        known = [registers[n] for n in range(24) if perf.X86_64_MASK >> n & 1]
        stack = self.stack.stack[: min(len(self.stack.stack) & ~7, keep, 32768)]
        return sample(7, time, KERNEL_CHAIN + stack_part(known, stack), tid=tid)

    @property
    def lookups(self) -> list[int]:
        return (self.truth.address - self.truth.is_return).tolist()


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded()


class Unwind:
    def __init__(self, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capfd = capfd
        self.path = folder / "perf.data"

    def __call__(self, content: bytes, *options: str) -> Finished:
        self.path.write_bytes(content)
        code = run(["unwind", str(self.path), *options])
        out, err = self._capfd.readouterr()
        return Finished(code, out, err)


@pytest.fixture
def unwind(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Unwind:
    return Unwind(capfd, tmp_path)


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
    (one,) = json.loads(done.out)["samples"]
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
    assert [frame["pc"] for frame in joined["frames"]] == [frame["pc"] for frame in whole["frames"]]
    assert [frame["function"] for frame in joined["frames"]] == [f["function"] for f in whole["frames"]]
    seen = len(of_another["frames"])
    assert [frame["method"] == "joined" for frame in joined["frames"]] == [
        i >= seen for i in range(len(whole["frames"]))
    ]
    assert "joined" not in [frame["method"] for frame in whole["frames"] + of_another["frames"]]
    assert done.err.startswith("memleak-android: 1 cut stacks go on by other samples of their threads")
    (without,) = {one["end"] for one in json.loads(unwind(content, "--json").out)["samples"][1:]}
    assert without == "STACK_TRUNCATED"


def test_text_says_from_where_on_a_stack_is_joined(unwind: Unwind, recorded: Recorded) -> None:
    done = unwind(recording(recorded, recorded.at(1), recorded.at(2, keep=512)), "--join")
    whole, joined = (part.splitlines()[1:] for part in done.out.rstrip("\n").split("\n\n"))
    at = [line.strip() for line in joined].index("[joined]")
    assert 1 < at < len(whole) and joined[:at] + joined[at + 1 :] == whole


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
    (without,) = json.loads(unwind(content, "--json").out)["samples"]
    (found,) = json.loads(unwind(content, "--json", "--symbols", str(files)).out)["samples"]
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
