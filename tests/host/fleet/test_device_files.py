"""A device's libraries, pulled by who recorded, name the stacks on every machine that shares the cache."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.fleet.named_cache import open_cache
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.symbols.build_cache import BuildCache, StoredOrigin
from tests.support.builders.fleet_recordings import SOURCE
from tests.support.fakes.adbd import FakeDevice
from tests.support.fleet_runs import FleetRun, fleet, parts
from tests.support.gcc import gcc
from tests.support.program_server import run_program

PLANTED = {"fill_cache", "open_session"}


@pytest.fixture
def device(device: FakeDevice) -> FakeDevice:
    """Without root."""
    device.add_program("id", "echo 2000")
    return device


def record(device: FakeDevice, into: Path, machine: Path, *options: object) -> str:
    """A recording of a program that is no longer on the device. stderr."""
    program = device.folder / "shop"
    gcc("-O2", "-g", "-DVERSION=1", "-o", program, SOURCE)
    words = ["record", "-s", device.serial, *options, "-o", into, "--", program, 1]
    done = run_program(list(map(str, words)), env={**os.environ, "XDG_CACHE_HOME": str(machine)})
    program.unlink()
    assert done.returncode == 0, done.stderr
    return done.stderr


def on(machine: Path, monkeypatch: pytest.MonkeyPatch, dataset: Path, *words: object) -> FleetRun:
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine))
    done = fleet(dataset, *words)
    assert done.code == 0, done.err
    return done


def named(run: FleetRun) -> set[str]:
    return {frame["function"] for site in run.answer["sites"] for frame in site["frames"]} & PLANTED


def counted(run: FleetRun) -> dict[str, int]:
    (row,) = (row for row in run.answer["cache"] if row["kind"] == "device files")
    return {name: row[name] for name in ("built", "reused", "fetched")}


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["folder", "store"])
def test_another_machine_names_what_this_one_has_pulled(
    device: FakeDevice, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cache = store if kind == "store" else str(tmp_path / "cache")
    recording = tmp_path / "farm" / "a.memleak"
    recording.parent.mkdir()
    record(device, recording, tmp_path / "recorder", "--cache", cache)
    at_home = on(tmp_path / "recorder", monkeypatch, tmp_path / "home", recording.parent)
    assert named(at_home) == PLANTED
    assert not named(on(tmp_path / "alone", monkeypatch, tmp_path / "a", recording.parent))
    shared = on(tmp_path / "other", monkeypatch, tmp_path / "b", recording.parent, "--cache", cache)
    assert named(shared) == PLANTED
    uses = counted(shared)
    assert uses["reused"] > 0 == uses["built"] and bool(uses["fetched"]) == (kind == "store")
    assert parts(tmp_path / "b") == parts(tmp_path / "home")


def test_a_worker_brings_what_its_machine_has_pulled(
    device: FakeDevice, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tmp_path / "a.memleak"
    record(device, recording, tmp_path / "recorder")
    first = on(tmp_path / "recorder", monkeypatch, tmp_path / "a", recording, "--cache", store)
    assert named(first) == PLANTED and counted(first)["built"] > 0
    assert named(on(tmp_path / "other", monkeypatch, tmp_path / "b", recording, "--cache", store)) == PLANTED


def test_a_store_that_says_no_costs_no_recording(device: FakeDevice, tmp_path: Path, store: str) -> None:
    options = ["-s", device.serial, "--cache", "s3://theirs/x", "-o", tmp_path / "no.memleak"]
    words = ["record", *options, "--", "true"]
    done = run_program(list(map(str, words)))
    assert done.returncode == 2 and "could not open a cache at s3://theirs/x: " in done.stderr
    assert not (tmp_path / "no.memleak").exists(), "refused before anything was measured"


class Refusing(StoredOrigin):
    """Readable; full by the time there is something to write."""

    def upload(self, name: str, path: Path) -> None:
        raise OSError(28, "No space left on device")


def library() -> tuple[str, Path]:
    from memleak_android.unwind.elf_headers import ElfSections

    path = find_binary("libmemleak.so", local_arch())
    return ElfSections(memoryview(path.read_bytes())).build_id, path


def test_what_could_not_be_brought_is_brought_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    import fsspec

    build_id, path = library()
    files, folder = fsspec.filesystem("file"), tmp_path / "machine"
    refusing = BuildCache(
        folder, Refusing(files, str(tmp_path / "store"), False), None, folder / "device-files"
    )
    assert refusing.share_device_file(build_id, [path]) is None and refusing.failures
    serving = BuildCache(
        folder, StoredOrigin(files, str(tmp_path / "store"), False), None, folder / "device-files"
    )
    assert serving.share_device_file(build_id, [path]) is not None
    (there,) = (tmp_path / "store" / "device-files").rglob("*.elf")
    assert there.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"\0" * len(data)]
)
def test_a_damaged_one_is_taken_for_none_and_brought_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    build_id, path = library()
    cache = open_cache(str(tmp_path / "cache"))
    shared = cache.share_device_file(build_id, [path])
    assert shared is not None
    shared.write_bytes(damage(path.read_bytes()))
    assert list(cache.device_copies("serial", build_id)) == []
    assert cache.share_device_file(build_id, [path]) == shared and shared.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("build_id", ["../../etc/passwd", "", "ab/..", "AB" * 20])
def test_a_build_id_never_leads_out_of_the_folder(tmp_path: Path, build_id: str) -> None:
    assert open_cache(str(tmp_path / "cache")).share_device_file(build_id, [library()[1]]) is None
    assert not (tmp_path / "cache").exists()
