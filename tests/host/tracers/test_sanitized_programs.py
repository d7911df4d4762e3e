"""Programs with a sanitizer: the shim is refused before they start, and BPF counts the sanitizer's allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.program_server import run_program
from tests.support.workloads import built, run

NAMES = {"address": "AddressSanitizer", "thread": "ThreadSanitizer"}


@pytest.mark.parametrize("kind", list(NAMES))
def test_the_shim_is_refused(kind: str) -> None:
    program = built("plain_leak", f"-fsanitize={kind}")
    done = run_program(["--tracer", "preload", "--", program, "23", "1009"])
    assert done.returncode == 4 and not done.stdout
    assert done.stderr == (
        f"memleak-android: error: {program} is built with {NAMES[kind]}, whose allocator has to come before any other"
        " library; use --tracer bpf, or a build without it\n"
    )


def test_bpf_counts_what_the_program_holds(tmp_path: Path) -> None:
    program = built("plain_leak", "-fsanitize=address")
    environment = {"ASAN_OPTIONS": "detect_leaks=0", "PATH": "/usr/bin:/bin"}
    found = run("bpf", tmp_path, "--", program, "23", "1009", environment=environment)
    (site,) = (one for one in found.report["sites"] if one["inuse_space"] == 1009 * one["inuse_objects"])
    assert site["inuse_objects"] == 23
