"""A program that links the shim and records itself: its files are whole, exact, and read anywhere. The imports of its build."""

import json
import os
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.profile.profile import Measurement, Profile
from memleak_android.host.recording.file import Recording
from memleak_android.host.recording.read import read_profile
from memleak_android.host.wire.blocks import BlockKind
from memleak_android.host.wire.payloads import decode_evidence
from tests.support.gcc import DEVICE, gcc, run_sanitized, sanitized
from tests.support.program_server import run_program

HERE = Path(__file__).resolve().parent
HEADER = HERE.parents[2] / "device" / "preload" / "include"
SMALL, LARGE = (1009, 200), (40009, 30)  # bytes, blocks
ONE_MIB = 1 << 20
# The program's own library, found before libc's functions; one that is loaded later.
WAYS = ["first", "slots"]


def build(source: Path, way: str, folder: Path) -> list[Path]:
    """The words of its command line, to which the folder comes."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    library = find_binary("libmemleak.so", local_arch())
    linked = ["-I", HEADER, library, f"-Wl,-rpath,{library.parent}"]
    if way == "first":
        compile_c(source, folder / "app", *linked)
        return [folder / "app"]
    compile_c(source, folder / "app", "-shared", "-fPIC", *linked)
    compile_c(HERE / "host.c", folder / "host")
    return [folder / "host", folder / "app"]


@pytest.fixture(scope="module", params=WAYS)
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(HERE / "app.c", request.param, tmp_path_factory.mktemp("app"))


def compile_c(source: Path, target: Path, *flags: str | Path) -> None:
    gcc("-O2", "-g", "-w", "-pthread", source, "-o", target, *flags)


@pytest.fixture(scope="module")
def written(app: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    with_full_disk(folder / "full", lambda: run(app, folder, "every"))
    return folder


def with_full_disk(folder: Path, action: Callable[[], None]) -> None:
    """action() while the folder is a file system of one page, where that can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        action()
        return
    try:
        (folder / "app.memleak").write_text("old")
        action()
        assert [path.name for path in folder.iterdir()] == ["app.memleak"]
        assert (folder / "app.memleak").read_text() == "old"
    finally:
        subprocess.run(["umount", folder], check=True)


def run(app: list[Path], folder: Path, *arguments: str) -> None:
    done = subprocess.run([*app, folder, *arguments], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def sizes(path: Path) -> Counter[int]:
    """Live blocks by size."""
    capture, recording = Capture(), Recording(path)
    for offset, block in recording.blocks():
        capture.add(block, offset)
    recording.close()
    assert recording.broken is None and not capture.malformed
    assert capture.end is not None and capture.whole is not None
    assert not capture.status["lost"].any()  # type: ignore[index]
    return Counter(capture.whole.live["size"].tolist())


def leaks(profile: Profile) -> dict[str, tuple[int, int]]:
    """Function that allocated → bytes and blocks."""
    return {
        site.frames[1].function: (site.inuse_space, site.inuse_objects)
        for site in profile.sites
        if site.kind == "user"
    }


def test_every_snapshot_is_whole_and_exact(written: Path) -> None:
    """While other threads work, in a signal handler, after the end, and of a second start."""
    expected = {f"{n:03}": (n, 0) for n in range(20, SMALL[1] + 1, 20)} | {"again": (3, 0)}
    expected |= dict.fromkeys(("handler", "stopped"), (SMALL[1], LARGE[1]))
    for name, blocks in expected.items():
        found = sizes(written / f"{name}.memleak")
        assert (found[1009], found[40009], found[5003]) == (*blocks, 0), name


def test_its_report_is_that_of_a_session(written: Path) -> None:
    profile = read_profile(written / "app.memleak", View())
    expected = {"leak_small": (1009 * 200, 200), "leak_large": (40009 * 30, 30)}
    assert {name: amount for name, amount in leaks(profile).items() if name in expected} == expected
    assert profile.measurement is Measurement.COMPLETE
    assert profile.totals.unattributed_objects == 0
    assert profile.unwinding.partial == 0
    (site,) = (site for site in profile.sites if site.frames[1].function == "leak_large")
    assert [frame.function for frame in site.frames][:3] == ["calloc", "leak_large", "main"]
    assert {frame.method for frame in site.frames[2:]} == {"eh_frame"}
    assert any('mark small "ones" done' in note for note in profile.notes)
    assert profile.target.tracer == "linked"


def test_where_slots_lead_to_us_the_report_says_what_is_not_seen(app: list[Path], written: Path) -> None:
    notes = read_profile(written / "app.memleak", View()).notes
    by_slots = [note for note in notes if "through a slot" in note]
    assert bool(by_slots) == (len(app) == 2)


def test_no_stack_bytes_and_private_permissions(written: Path) -> None:
    path = written / "app.memleak"
    assert path.stat().st_mode & 0o777 == 0o600
    recording = Recording(path)
    blocks = [block.payload for _, block in recording.blocks() if block.kind == BlockKind.EVIDENCE]
    recording.close()
    rows = np.concatenate([decode_evidence(payload).rows for payload in blocks])
    assert len(rows) >= 2 and not rows["stack_bytes"].any()
    assert not list(written.glob("*.new"))


def test_by_default_samples_are_taken(app: list[Path], tmp_path: Path) -> None:
    os.mkfifo(
        tmp_path / "app.memleak.new"
    )  # in a shared folder, a name that can be guessed is taken by another user
    run(app, tmp_path)
    profile = read_profile(tmp_path / "app.memleak", View())
    assert profile.target.sample_bytes == 65536
    space = sum(site.inuse_space for site in profile.sites if site.frames[1].function.startswith("leak_"))
    assert 400_000 < space < 3_500_000  # 1,402,070: five standard errors, √(65536 / 1.4 M) each
    assert all(site.stderr_space is not None for site in profile.sites)
    assert profile.totals.alloc_space is None  # samples are no count
    assert all(site.alloc_space is None for site in profile.sites)


def test_names_come_by_build_id_where_the_files_are_gone(
    app: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # it would remember the names
    moved = tmp_path / "symbols" / "elsewhere"
    moved.parent.mkdir()
    own = tmp_path / "app"
    shutil.copy(app[-1], own)
    run([*app[:-1], own], tmp_path, "every")
    own.rename(moved)
    assert "leak_large" not in leaks(read_profile(tmp_path / "app.memleak", View()))
    named = leaks(read_profile(tmp_path / "app.memleak", View(), [moved.parent]))
    assert named["leak_large"] == (40009 * 30, 30)


def test_a_limit_of_file_sizes_is_an_error_and_no_signal(app: list[Path], tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ONE_MIB, ONE_MIB))

    done = subprocess.run([*app, tmp_path], check=False, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1
    assert "last snapshot: -27, not 0" in done.stderr
    assert not list(tmp_path.iterdir())


def test_under_a_tracer_it_is_the_tracer_that_records(app: list[Path], tmp_path: Path) -> None:
    library = find_binary("libmemleak.so", local_arch())
    environment = os.environ | {"MEMLEAK_SHIM": str(library)}
    words = ["--tracer", "preload", "--json", tmp_path / "r.json", "--", *app, tmp_path]
    done = run_program(words, env=environment)
    assert "start: -16, not 0" in done.stderr
    assert (tmp_path / "r.json").exists()


@pytest.mark.proof
@pytest.mark.parametrize("way", WAYS)
def test_begun_and_ended_a_hundred_times_under_load(way: str, tmp_path: Path) -> None:
    run(build(HERE / "stress.c", way, tmp_path), tmp_path)
    for number in range(100):
        profile = read_profile(tmp_path / f"{number}.memleak", View())
        assert (profile.measurement, profile.unwinding.partial) == (Measurement.COMPLETE, 0), profile.notes


SHIM_FLAGS = ("-fvisibility=hidden", "-fno-builtin", "-Wno-tsan", "-shared", "-fPIC")
SHIM_LINKING = ("-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-Bsymbolic")
READ = range(5, 100, 10)  # of its hundred recordings


def build_sanitized(folder: Path, sanitizer: str) -> list[Path]:
    """The words of the command line, to which folder and mode come. All but the host are loaded late, as in an app."""
    shim, app, host = folder / "libmemleak.so", folder / "app", folder / "host"
    sources = [*sorted((DEVICE / "preload").rglob("*.c")), *sorted((DEVICE / "cfi").glob("*.c"))]
    header, found = f"-I{DEVICE / 'preload' / 'include'}", f"-Wl,-rpath,{folder}"
    sanitized(shim, sanitizer, *SHIM_FLAGS, header, *SHIM_LINKING, *sources)
    sanitized(app, sanitizer, "-shared", "-fPIC", header, HERE / "stress.c", shim, found)
    return [sanitized(host, sanitizer, HERE / "host.c", "-ldl"), app]


@pytest.mark.proof
@pytest.mark.parametrize(("sanitizer", "mode"), [("thread", "settled"), ("address,undefined", "")])
def test_begun_and_ended_under_threads_forks_and_signals(tmp_path: Path, sanitizer: str, mode: str) -> None:
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "die_after_fork=0"}
    run_sanitized(*build_sanitized(tmp_path, sanitizer), tmp_path, mode, timeout_s=120, **options)
    profiles = [read_profile(tmp_path / f"{number}.memleak", View()) for number in READ]
    incomplete = [profile for profile in profiles if profile.measurement != Measurement.COMPLETE]
    # A slow machine loses evidence.
    assert not [profile.notes for profile in incomplete if not profile.totals.lost]
    assert sum(profile.totals.alloc_objects or 0 for profile in profiles) > len(READ)


@pytest.fixture(scope="module")
def sdk() -> Path:
    done = run_program(["sdk"])
    if "make device" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


def test_the_header_is_the_sources_own(sdk: Path) -> None:
    source = HERE.parents[2] / "device" / "preload" / "include" / "memleak.h"
    assert (sdk / "memleak.h").read_bytes() == source.read_bytes()
    check = ["-x", "c++", "-std=c++11", "-pedantic-errors", "-Wall", "-Werror", "-fsyntax-only"]
    if shutil.which("g++"):
        subprocess.run(["g++", *check, "-Wno-pragma-once-outside-header", sdk / "memleak.h"], check=True)


def exact_report(app: Path, folder: Path) -> None:
    """The app records itself into the folder, every block of it, and `report` names who leaked them."""
    subprocess.run([app, folder, "every"], check=True)
    words = ["report", folder / "app.memleak", "--format", "json", "-o", folder / "report.json"]
    run_program(words).check_returncode()
    sites = json.loads((folder / "report.json").read_text())["sites"]
    names = [{frame["function"] for frame in site["frames"]} & {"leak_small", "leak_large"} for site in sites]
    held = {
        name: (site["inuse_space"], site["inuse_objects"])
        for site, found in zip(sites, names, strict=True)
        for name in found
    }
    assert held == {"leak_small": (1009 * 200, 200), "leak_large": (40009 * 30, 30)}


need_x86_64 = pytest.mark.skipif(
    local_arch() != "x86_64" or shutil.which("gcc") is None,
    reason="the example is built for x86_64, with gcc",
)
need_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None, reason="cmake is not installed (.ci/packages.txt)"
)


@need_x86_64
def test_an_app_of_ndk_builds_modules(sdk: Path, tmp_path: Path) -> None:
    """By its makefiles' documented variables, without an NDK. What the import sets is undone for what follows it."""
    words = ["make", "-s", "-f", HERE / "ndk" / "Makefile", f"MEMLEAK_SDK={sdk}", f"OUT={tmp_path}"]
    subprocess.run(words, check=True, cwd=tmp_path)
    exact_report(tmp_path / "app", tmp_path)


@need_cmake
@need_x86_64
def test_an_app_of_cmake(sdk: Path, tmp_path: Path) -> None:
    options = [f"-DMEMLEAK_SDK={sdk}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    subprocess.run(["cmake", "-S", HERE, "-B", tmp_path, *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    exact_report(tmp_path / "app", tmp_path)


@need_cmake
@pytest.mark.parametrize("abi", ["arm64-v8a", "armeabi-v7a", "x86_64", "riscv64"])
def test_cmake_takes_the_library_of_the_apps_abi(sdk: Path, abi: str, tmp_path: Path) -> None:
    """The NDK toolchain's names; the error names an ABI without a library."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(any NONE)\n"
        f'find_package(memleak CONFIG REQUIRED PATHS "{sdk}" NO_DEFAULT_PATH)\n'
        'get_target_property(library memleak::memleak IMPORTED_LOCATION)\nmessage(STATUS "takes ${library}")\n'
    )
    configure = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DANDROID_ABI={abi}"]
    done = subprocess.run(configure, check=False, capture_output=True, text=True)
    library = (sdk / ".." / abi / "libmemleak.so").resolve()
    out = done.stdout.replace(str(sdk.parent), str(sdk.parent.resolve()))
    if library.exists():
        assert f"takes {library}" in out, done.stderr
    else:
        assert done.returncode
        assert f"this installation has no library for {abi}" in " ".join(done.stderr.split())
