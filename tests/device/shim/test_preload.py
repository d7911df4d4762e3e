"""The preload shim on programs that allocate in awkward ways, and on real ones with valgrind as the judge."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.wire.blocks import ProcessEvent
from tests.support.gcc import gcc
from tests.support.preload_session import PreloadSession, run_preloaded

HERE = Path(__file__).resolve().parents[1] / "programs"
PARTS = HERE.parents[2] / "device"
MALLOC, CALLOC, REALLOC, REALLOCARRAY, POSIX_MEMALIGN, MEMALIGN, ALIGNED_ALLOC, VALLOC, PVALLOC = range(1, 10)
PC = 16  # in the order of struct pt_regs
RING_FULL, TABLE_FULL, MISSED_FREE = 0, 2, 8


def compiled(folder: Path, *sources: str, output: str, flags: tuple[str, ...] = ()) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    target = folder / output
    argv = [
        "gcc",
        "-O2",
        "-fomit-frame-pointer",
        "-fno-builtin",
        "-w",
        "-pthread",
        *(HERE / name for name in sources),
    ]
    subprocess.run([*argv, "-o", target, *flags, "-ldl"], check=True)
    return target


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("preload"), "preload_workload.c", output="workload")


def balanced(session: PreloadSession) -> None:
    """The table and the counters by key say the same, and nothing was lost."""
    status = session.status
    assert status["alloc_objects"] - status["free_objects"] == len(session.live)
    assert status["alloc_bytes"] - status["free_bytes"] == session.live["size"].sum()
    assert len(np.unique(session.live["sequence"])) == len(session.live)
    assert not status["lost"].any(), status["lost"]


def attributed(session: PreloadSession) -> None:
    """Every live block's key has evidence."""
    assert set(session.live["key"].tolist()) <= session.evidence_keys()


def test_each_function_and_its_size(workload: Path) -> None:
    session = run_preloaded([workload, "families"])
    expected = {
        (101, MALLOC), (133, CALLOC), (137, REALLOC), (151, REALLOC), (201, REALLOCARRAY), (211, POSIX_MEMALIGN),
        (223, MEMALIGN), (256, ALIGNED_ALLOC), (307, VALLOC), (311, PVALLOC),
    }  # fmt: skip
    rows = session.live[np.isin(session.live["function"], range(1, 10))]
    assert sorted(zip(rows["size"].tolist(), rows["function"].tolist(), strict=True)) == sorted(expected)
    balanced(session)
    attributed(session)
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


def test_calls_that_fail_change_nothing(workload: Path) -> None:
    session = run_preloaded([workload, "failures"])
    assert session.sizes() == {1009: 1}
    balanced(session)
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


def test_threads_that_free_and_resize(workload: Path) -> None:
    session = run_preloaded([workload, "threads"])
    assert session.sizes()[1009] == 8 * 23
    rest = session.live[
        np.isin(session.live["function"], (MALLOC, REALLOC))
    ]  # glibc callocs its thread vectors
    assert set(rest["size"].tolist()) == {1009}
    balanced(session)
    attributed(session)


def test_more_threads_than_slots(workload: Path) -> None:
    session = run_preloaded([workload, "churn"])
    assert session.sizes()[1013] == 3000
    balanced(session)
    attributed(session)


def test_signal_handlers_that_allocate(tmp_path: Path) -> None:
    """Handlers interrupt the recorder itself anywhere: the books still balance to the block."""
    allocator = compiled(tmp_path, "signal_safe_allocator.c", output="safe.so", flags=("-shared", "-fPIC"))
    program = compiled(tmp_path, "preload_workload.c", output="handlers", flags=(str(allocator),))
    session = run_preloaded([program, "signals"])
    assert session.sizes()[509] >= 500
    status = session.status
    assert status["alloc_objects"] - status["free_objects"] == len(session.live)
    assert status["lost"][MISSED_FREE] == 0
    assert status["lost"][TABLE_FULL] == 0


def test_stacks_that_belong_to_no_thread(workload: Path) -> None:
    session = run_preloaded([workload, "stacks"])
    assert session.sizes()[521] == 50
    assert session.sizes()[523] == 50
    balanced(session)
    attributed(session)
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


def test_a_fork_leaves_the_parent_s_books_alone(workload: Path) -> None:
    session = run_preloaded([workload, "forks"])
    assert session.sizes() == {1013: 11, 1019: 1}
    balanced(session)


def test_a_fork_that_is_followed_keeps_its_own(workload: Path) -> None:
    session = run_preloaded([workload, "forks"], follow=True)
    by_pid = {pid: session.live[session.live["pid"] == pid] for pid in np.unique(session.live["pid"])}
    assert sorted(sorted(set(rows["size"].tolist())) for rows in by_pid.values()) == [[1013, 1019], [2029]]
    assert session.sizes()[2029] == 7
    assert session.status["untracked_frees"] == 11


@pytest.mark.parametrize("follow", [False, True])
def test_forks_where_the_kernel_wipes_no_page(workload: Path, tmp_path: Path, follow: bool) -> None:
    launcher = compiled(tmp_path, "refuse_wipe_on_fork.c", output="launcher")
    session = run_preloaded([launcher, workload, "forks"], follow=follow)
    assert session.sizes() == {1013: 11, 1019: 1} | ({2029: 7} if follow else {})
    if not follow:
        balanced(session)
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


def test_sigkill_loses_nothing(workload: Path) -> None:
    session = run_preloaded([workload, "killed"])
    assert session.sizes() == {1009: 23}
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == -signal.SIGKILL
    balanced(session)
    attributed(session)


def code_of(maps_text: str) -> frozenset[int]:
    """Code addresses: after an exec they differ from those before."""
    return frozenset(m.start for m in parse_maps(maps_text) if m.is_executable)


def test_exec_goes_on_in_the_new_program(workload: Path) -> None:
    session = run_preloaded([workload, "execs"])
    assert session.sizes() == {1031: 5}
    assert [event for _, event in session.processes] == [
        ProcessEvent.START, ProcessEvent.EXEC, ProcessEvent.EXIT,
    ]  # fmt: skip
    attributed(session)
    start_ns, exec_ns, _ = session.process_times_ns
    old, *new = sorted({(one.timestamp_ns, code_of(one.text)) for one in session.maps})
    assert start_ns < old[0] < exec_ns < new[0][0] <= int(session.live["timestamp_ns"].min())
    assert old[1] not in {code for _, code in new}


def test_the_target_finds_the_user_s_environment(workload: Path) -> None:
    session = run_preloaded([workload, "environment"])
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


def test_the_user_s_own_preload_stays(workload: Path, tmp_path: Path) -> None:
    library = compiled(tmp_path, "preload_library.c", output="library.so", flags=("-shared", "-fPIC"))
    session = run_preloaded([workload, "environment"], {"LD_PRELOAD": str(library)})
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 2


def test_maps_are_sent_anew_after_dlopen(workload: Path, tmp_path: Path) -> None:
    library = compiled(tmp_path, "preload_library.c", output="late.so", flags=("-shared", "-fPIC"))
    session = run_preloaded([workload, "loads", library])
    assert session.sizes()[1021] == 3
    assert "late.so" not in session.maps[0].text
    assert "late.so" in session.maps[-1].text
    attributed(session)


def test_maps_are_sent_anew_where_a_stack_leads_to_unknown_code(workload: Path) -> None:
    """The linkers of Android and compilers within programs announce no code by allocating."""
    session = run_preloaded([workload, "makes_code"])
    assert session.sizes()[1049] == 3
    called = [
        (int(row["timestamp_ns"]), int(registers[PC]))
        for batch in session.evidence
        for row, registers in zip(batch.rows, batch.registers, strict=True)
        if row["size"] == 1049
    ]
    assert called
    for timestamp_ns, pc in called:
        maps = max(
            (one for one in session.maps if one.timestamp_ns <= timestamp_ns),
            key=lambda one: one.timestamp_ns,
        )
        assert any(m.start <= pc < m.end and m.is_executable for m in parse_maps(maps.text))


def test_a_full_table_is_counted(workload: Path) -> None:
    session = run_preloaded([workload, "many", "100000", "31"], max_live=1000)
    assert 1000 <= len(session.live) <= 3000
    assert len(session.live) + session.status["lost"][TABLE_FULL] == 100000


@pytest.mark.parametrize("size", [31, 997, 65536])
def test_sampling_is_unbiased(workload: Path, size: int) -> None:
    n, mean = 100000, 8192
    session = run_preloaded([workload, "many", str(n), str(size)], sample_bytes=mean)
    rows = session.live[session.live["size"] == size]
    probability = -np.expm1(-size / mean)
    error = np.sqrt((1 - probability) / (n * probability)) + 1e-9
    assert (rows["sample_bytes"] == mean).all()
    assert abs(len(rows) / probability / n - 1) < 5 * error
    assert session.status["untracked_frees"] == 0


def test_a_static_program_is_refused(tmp_path: Path) -> None:
    program = compiled(tmp_path, "preload_workload.c", output="static", flags=("-static",))
    with pytest.raises(AssertionError, match="never loaded the recorder"):
        run_preloaded([program, "many", "1", "1"])


def test_a_file_size_limit_does_not_kill_the_target(workload: Path) -> None:
    command = ["/bin/bash", "-c", f"ulimit -f 100; exec {workload} many 5 1031"]
    session = run_preloaded(command)
    assert os.waitstatus_to_exitcode(int(session.end["status"])) == 0


@pytest.mark.parametrize("kib", [1500000, 500000])  # the first is enough for all blocks
def test_little_address_space_is_enough(workload: Path, kib: int) -> None:
    session = run_preloaded(["/bin/bash", "-c", f"ulimit -v {kib}; exec {workload} many 5 1031"])
    assert session.sizes()[1031] == 5


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_table_keys_and_rings_under_many_threads(tmp_path: Path, sanitizer: str) -> None:
    names = ("segment.c", "shadow.c", "table.c", "keys.c", "peak.c", "ring.c", "thread.c")
    program = sanitized(
        tmp_path, sanitizer, "table_stress.c", *(PARTS / "preload" / "segment" / name for name in names)
    )
    for chunks in ("0", "256"):
        run_sanitized(program, chunks)


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_rules_of_code_that_goes_away(tmp_path: Path, sanitizer: str) -> None:
    parts = ("stacks/frame_resolve.c", "stacks/code_lines.c", "freestanding/bytes.c")
    names = [PARTS / "preload" / name for name in parts]
    program = sanitized(tmp_path, sanitizer, "resolve_stress.c", *names, *sorted((PARTS / "cfi").glob("*.c")))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        libc = next(line.split()[-1] for line in maps if re.search(r"/libc\.so\.6$|/libc-2", line))
    run_sanitized(program, libc)


def sanitized(folder: Path, sanitizer: str, *sources: str | Path) -> Path:
    if shutil.which("gcc") is None or shutil.which("setarch") is None:
        pytest.skip("gcc or setarch is not installed")
    flags = [
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        "-w",
        f"-fsanitize={sanitizer}",
        f"-I{PARTS}",
        f"-I{PARTS / 'preload'}",
        "-pthread",
    ]
    program = folder / "stress"
    gcc(*flags, *(HERE / source for source in sources), "-o", program)
    return program


def run_sanitized(program: Path, argument: str) -> None:
    run = subprocess.run(
        ["setarch", "-R", program, argument], capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, ""), argument


REAL = {
    "jq": ["/usr/bin/jq", "-n", "[range(2000)|{a:., b:tostring}]|map(.b)|length"],
    "sqlite3": [
        "/usr/bin/sqlite3",
        ":memory:",
        "create table t(a,b); insert into t values(1,2); select * from t",
    ],
    "python3": ["/usr/bin/python3", "-S", "-c", "import json; kept = json.loads('[1, {\"a\": [2.5]}]')"],
}


@pytest.mark.parametrize("name", REAL)
def test_in_use_at_exit_as_valgrind_counts_it(name: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    if not Path(REAL[name][0]).exists():
        pytest.skip(f"{REAL[name][0]} is not installed")
    environment = {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc", "PYTHONDONTWRITEBYTECODE": "1"}
    judge = subprocess.run(
        ["valgrind", "--run-libc-freeres=no", "--run-cxx-freeres=no", *REAL[name]],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    in_use = re.search(r"in use at exit: ([\d,]+) bytes in ([\d,]+) blocks", judge.stderr)
    assert in_use is not None
    expected = [int(figure.replace(",", "")) for figure in in_use.groups()]
    session = run_preloaded(REAL[name], environment)
    assert [int(session.live["size"].sum()), len(session.live)] == expected
    balanced(session)
    attributed(session)
