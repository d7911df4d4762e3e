"""The preload shim on programs that allocate in awkward ways, and on real ones with valgrind as the judge."""

import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.wire.blocks import WIRE_VERSION, ProcessEvent
from tests.support.attached_program import session_name, slot_library
from tests.support.gcc import compiled
from tests.support.preload_session import (
    PreloadSession,
    await_process,
    find_parts,
    run_preloaded,
    started_outside,
)
from tests.support.workloads import PROGRAMS, build, built, plugin, without_calls

MALLOC, CALLOC, REALLOC, REALLOCARRAY, POSIX_MEMALIGN, MEMALIGN, ALIGNED_ALLOC, VALLOC, PVALLOC = range(1, 10)
ANY = set(range(1, 10))
NO_WIPE = "28:22:18"  # madvise of x86_64, EINVAL, MADV_WIPEONFORK
RING_FULL, TABLE_FULL, MISSED_FREE = 0, 2, 8


def workload(*flags: str | Path) -> Path:
    return built(PROGRAMS / "preload_workload", "-fno-builtin", *flags)


def ran(*words: str | Path, **options: int) -> PreloadSession:
    return run_preloaded([workload(), *words], **options)


def exit_code(session: PreloadSession) -> int:
    return os.waitstatus_to_exitcode(int(session.end["status"]))


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


def test_each_function_and_its_size() -> None:
    session = ran("families")
    expected = {
        (101, MALLOC), (133, CALLOC), (137, REALLOC), (151, REALLOC), (201, REALLOCARRAY), (211, POSIX_MEMALIGN),
        (223, MEMALIGN), (256, ALIGNED_ALLOC), (307, VALLOC), (311, PVALLOC),
    }  # fmt: skip
    rows = session.live[np.isin(session.live["function"], range(1, 10))]
    assert sorted(zip(rows["size"].tolist(), rows["function"].tolist(), strict=True)) == sorted(expected)
    balanced(session)
    attributed(session)
    assert exit_code(session) == 0


@pytest.mark.parametrize(
    ("way", "sizes", "others"),
    [
        ("failures", {1009: 1}, set()),  # calls that fail change nothing
        ("threads", {1009: 8 * 23}, {CALLOC}),  # glibc callocs its thread vectors
        ("churn", {1013: 3000}, ANY),  # more threads than slots
        ("stacks", {521: 50, 523: 50}, ANY),  # stacks that belong to no thread
        ("forks", {1013: 11, 1019: 1}, set()),  # a child that is not followed
    ],
)
def test_what_stays(way: str, sizes: dict[int, int], others: set[int]) -> None:
    """others: functions that may hold further blocks."""
    session = ran(way)
    assert {size: session.sizes()[size] for size in sizes} == sizes
    rest = session.live[~np.isin(session.live["function"], list(others))]
    assert set(rest["size"].tolist()) <= set(sizes)
    balanced(session)
    attributed(session)
    assert exit_code(session) == 0


def test_threads_that_inherit_a_thread_pointer() -> None:
    session = ran("successors")
    rows = session.live[session.live["size"] > 100000]
    assert (rows["size"] - 100000).tolist() == rows["tid"].tolist()
    assert len(set(rows["tid"].tolist())) == 6
    for batch in session.evidence:
        sent = batch.rows[batch.rows["size"] > 100000]
        assert (sent["size"] - 100000).tolist() == sent["tid"].tolist()


def test_signal_handlers_that_allocate() -> None:
    """Handlers interrupt the recorder itself anywhere: the books still balance to the block."""
    session = run_preloaded(
        [workload(built(PROGRAMS / "own_allocator", "-shared", "-fPIC", "-fno-builtin")), "signals"]
    )
    assert session.sizes()[509] >= 500
    status = session.status
    assert status["alloc_objects"] - status["free_objects"] == len(session.live)
    assert status["lost"][MISSED_FREE] == 0
    assert status["lost"][TABLE_FULL] == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the frames of other compilers' code differ")
def test_a_handler_on_a_small_stack() -> None:
    session = ran("small_stack")
    assert (exit_code(session), session.sizes()[509]) == (0, 20)


def test_a_fork_that_is_followed_keeps_its_own() -> None:
    session = ran("forks", follow=True)
    by_pid = {pid: session.live[session.live["pid"] == pid] for pid in np.unique(session.live["pid"])}
    assert sorted(sorted(set(rows["size"].tolist())) for rows in by_pid.values()) == [[1013, 1019], [2029]]
    assert session.sizes()[2029] == 7
    assert session.status["untracked_frees"] == 11


@pytest.mark.parametrize("follow", [False, True])
def test_forks_where_the_kernel_wipes_no_page(follow: bool) -> None:
    session = run_preloaded([without_calls(), NO_WIPE, "--", workload(), "forks"], follow=follow)
    assert session.sizes() == {1013: 11, 1019: 1} | ({2029: 7} if follow else {})
    if not follow:
        balanced(session)
    assert exit_code(session) == 0


def code_of(maps_text: str) -> frozenset[int]:
    """Code addresses: after an exec they differ from those before."""
    return frozenset(m.start for m in parse_maps(maps_text) if m.is_executable)


def test_exec_goes_on_in_the_new_program() -> None:
    session = ran("execs")
    assert session.sizes() == {1031: 5}
    assert [event for _, event in session.processes] == [
        ProcessEvent.START, ProcessEvent.EXEC, ProcessEvent.EXIT,
    ]  # fmt: skip
    attributed(session)
    start_ns, exec_ns, _ = session.process_times_ns
    old, *new = sorted({(one.timestamp_ns, code_of(one.text)) for one in session.maps})
    assert start_ns < old[0] < exec_ns < new[0][0] <= int(session.live["timestamp_ns"].min())
    assert old[1] not in {code for _, code in new}


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("plain", []),
        ("namespace", ["what a second C library (dlmopen) allocates is not seen: use --tracer bpf"]),
        ("deep", ["what {} allocates, loaded with RTLD_DEEPBIND, is not seen: use --tracer bpf"]),
    ],
)
def test_libraries_whose_calls_pass_the_shim_by(tmp_path: Path, way: str, said: list[str]) -> None:
    """The program ends at once, before its mappings could be compared."""
    library = plugin(tmp_path, "past", 1013)
    session = ran("loads", way, library)
    assert session.gaps == [text.format(library) for text in said]
    assert exit_code(session) == 0
    assert session.sizes()[1013] == (not said)


def test_a_library_is_found_by_the_runpath_of_the_program(tmp_path: Path) -> None:
    """dlopen() of a bare name goes by the RUNPATH of who calls: the program's, not the shim's."""
    library = plugin(tmp_path, "past", 1013)
    program = build(PROGRAMS / "preload_workload", tmp_path, "-fno-builtin", f"-Wl,-rpath,{tmp_path}")
    session = run_preloaded([program, "loads", "plain", library.name])
    assert (exit_code(session), session.sizes()[1013]) == (0, 1)


@pytest.mark.parametrize("preloads", [False, True])
def test_the_target_finds_the_user_s_environment(preloads: bool) -> None:
    environment = {"LD_PRELOAD": str(slot_library())} if preloads else None
    session = run_preloaded([workload(), "environment"], environment)
    assert exit_code(session) == (2 if preloads else 0)


def test_the_clock_of_another_library_is_not_asked(tmp_path: Path) -> None:
    """It allocates and stands still, as libfaketime may."""
    source = tmp_path / "clock.c"
    source.write_text(
        "#include <stdlib.h>\nint clock_gettime(int clock, long *now) { (void)clock; free(malloc(1)); return now[0] = now[1] = 0; }\n"
    )
    library = compiled(tmp_path / "clock.so", "-shared", "-fPIC", "-fno-builtin", source)
    session = run_preloaded([workload(), "many", "100", "37"], {"LD_PRELOAD": str(library)})
    assert (exit_code(session), session.sizes()[37]) == (0, 100)
    assert session.live["timestamp_ns"].min() > 0


@pytest.mark.parametrize("size", [31, 997, 65536])
def test_sampling_is_unbiased(size: int) -> None:
    n, mean = 100000, 8192
    session = ran("many", str(n), str(size), sample_bytes=mean)
    rows = session.live[session.live["size"] == size]
    probability = -np.expm1(-size / mean)
    error = np.sqrt((1 - probability) / (n * probability)) + 1e-9
    assert (rows["sample_bytes"] == mean).all()
    assert abs(len(rows) / probability / n - 1) < 5 * error
    assert session.status["untracked_frees"] == 0


def test_a_static_program_is_refused() -> None:
    with pytest.raises(AssertionError, match="never loaded the recorder"):
        run_preloaded([workload("-static"), "many", "1", "1"])


@pytest.mark.parametrize(
    "limit", ["-f 100", "-v 1500000", "-v 500000"]
)  # address space for all blocks, and for few
def test_a_limit_does_not_kill_the_target(limit: str) -> None:
    session = run_preloaded(["/bin/bash", "-c", f"ulimit {limit}; exec {workload()} many 5 1031"])
    assert exit_code(session) == 0
    assert limit.startswith("-f") or session.sizes()[1031] == 5


# ---- processes started by another one, which find their session in the file beside the shim: wrap.PACKAGE of Android


@pytest.mark.parametrize(
    ("words", "sizes"),
    [(("many", "1000", "31"), {31: 1000}), (("environment",), {}), (("execs",), {1031: 5})],
)
def test_an_awaited_process_joins_by_the_file(
    tmp_path: Path, words: tuple[str, ...], sizes: dict[int, int]
) -> None:
    """It finds the user's environment, and goes along by exec."""
    name, running = session_name(), []
    session = await_process(name, lambda: running.append(started_outside(tmp_path, name, workload(), *words)))
    assert {size: session.sizes()[size] for size in sizes} == sizes
    events = [ProcessEvent.START, *([ProcessEvent.EXEC] if words == ("execs",) else []), ProcessEvent.EXIT]
    assert session.processes == [(running[0].pid, event) for event in events]
    assert running[0].wait(30) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no-nonce",
        "name:0123",
        "name:" + "z" * 32,
        "name:" + "0" * 32,
        "name:" + "1" * 31 + "z",
        "x" * 500,
    ],
)
def test_a_file_that_names_no_session_changes_nothing(tmp_path: Path, text: str) -> None:
    assert started_outside(tmp_path, text, workload(), "many", "1000", "31").wait(30) == 0


def test_one_session_with_two_processes_ends_with_the_last(tmp_path: Path) -> None:
    name, done = session_name(), tmp_path / "done"

    def start_both() -> None:
        started_outside(tmp_path, name, "sh", "-c", f"while [ ! -e {done} ]; do sleep 0.01; done")
        started_outside(tmp_path, name, workload(), "many", "100", "37").wait()
        done.touch()

    session = await_process(name, start_both)
    assert session.sizes()[37] == 100
    assert len({pid for pid, _ in session.processes}) == 2


@pytest.mark.parametrize(
    ("verb", "lines", "said"),
    [
        ("preload", (f"await {session_name()}",), "no process loaded the recorder"),
        ("preload", (f"await {session_name()}", "arg true"), "more than one target"),
        ("preload", ("await name",), "could not listen for the target: Invalid argument"),
        ("bpf", (f"await {session_name()}",), "only the preload tracer"),
    ],
    ids=["unmet", "two targets", "no nonce", "bpf"],
)
def test_refusals(verb: str, lines: tuple[str, ...], said: str) -> None:
    words = "".join(f"{line}\n" for line in (f"wire {WIRE_VERSION}", *lines, "start", "stop"))
    agent = [find_parts()[0], verb]
    done = subprocess.run(agent, input=words.encode(), capture_output=True, check=False)
    assert done.returncode in (2, 5) and said in done.stdout.decode(errors="replace")
