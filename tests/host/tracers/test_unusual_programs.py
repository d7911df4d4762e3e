"""Programs that the shim cannot measure: refused before they start, by name, with the way out; BPF counts what they hold."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.support.gcc import gcc
from tests.support.program_server import run_program
from tests.support.workloads import ROOT, built, run

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


def test_valgrind_replaces_the_allocator(tmp_path: Path) -> None:
    """Its other tools do not."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    program, report = built("plain_leak"), tmp_path / "report.json"
    done = run_program(["--tracer", "preload", "--", "valgrind", program, "23", "1009"])
    assert done.returncode == 4
    assert done.stderr == (
        "memleak-android: error: valgrind's memcheck replaces malloc, so no tracer sees it;"
        " run the program without valgrind\n"
    )
    words = ["valgrind", "-q", "--tool=none", program, "23", "1009"]
    done = run_program(["--tracer", "preload", "--json", report, "--", *words], timeout_s=100)
    assert done.returncode == 0, done.stderr
    sites = json.loads(report.read_text())["sites"]
    assert [one["inuse_objects"] for one in sites if one["inuse_space"] == 23 * 1009] == [23]


def refusal(program: Path) -> str:
    done = run_program(["--tracer", "preload", "--", program, "23", "1009"])
    assert done.returncode == 4 and not done.stdout, "nothing has run"
    return done.stderr.removeprefix(f"memleak-android: error: {program} ")


@pytest.mark.skipif(os.geteuid() != 0, reason="run as root: it makes a file of another user")
@pytest.mark.parametrize(("mode", "name"), [(stat.S_ISUID, "set-user-ID"), (stat.S_ISGID, "set-group-ID")])
def test_a_program_with_rights_of_its_own(mode: int, name: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy(built("plain_leak"), program)
    os.chown(program, 65534, 65534)
    program.chmod(0o755 | mode)
    assert refusal(program).startswith(
        f"runs with other rights than yours ({name}), and its loader ignores LD_PRELOAD"
    )


def test_a_library_is_missing(tmp_path: Path) -> None:
    library, program = tmp_path / "libgone.so", tmp_path / "program"
    gcc("-shared", "-fPIC", "-o", library, "-x", "c", "/dev/null")
    gcc(
        "-o",
        program,
        "-Dplain_leak=main",
        ROOT / "tests/support/programs/cases.c",
        "-Wl,--no-as-needed",
        library,
    )
    library.unlink()
    assert refusal(program).endswith(
        "ended before its first code, with the dynamic linker's exit status 127; see its message\n"
    )
    assert "libgone.so: cannot open shared object file" in refusal(program)


def test_bpf_counts_what_the_program_holds(tmp_path: Path) -> None:
    program = built("plain_leak", "-fsanitize=address")
    environment = {"ASAN_OPTIONS": "detect_leaks=0", "PATH": "/usr/bin:/bin"}
    found = run("bpf", tmp_path, "--", program, "23", "1009", environment=environment)
    (site,) = (one for one in found.report["sites"] if one["inuse_space"] == 1009 * one["inuse_objects"])
    assert site["inuse_objects"] == 23
