"""The shim's own code under sanitizers, recording a program by its slots: threads, forks and signals meanwhile."""

from pathlib import Path

import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.profile.profile import Verdict
from memleak_android.host.recording.read import read_profile
from tests.support.gcc import DEVICE, run_sanitized, sanitized

HERE = Path(__file__).resolve().parent
SHIM_FLAGS = ("-fvisibility=hidden", "-fno-builtin", "-Wno-tsan", "-shared", "-fPIC")
SHIM_LINKING = ("-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-Bsymbolic")
READ = range(5, 100, 10)  # of its hundred recordings


def build(folder: Path, sanitizer: str) -> list[Path]:
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
    run_sanitized(*build(tmp_path, sanitizer), tmp_path, mode, timeout_s=120, **options)
    profiles = [read_profile(tmp_path / f"{number}.memleak", View()) for number in READ]
    incomplete = [profile for profile in profiles if profile.verdict != Verdict.OK]
    # A slow machine loses evidence.
    assert not [profile.notes for profile in incomplete if not profile.totals.lost]
    assert sum(profile.totals.alloc_objects or 0 for profile in profiles) > len(READ)
