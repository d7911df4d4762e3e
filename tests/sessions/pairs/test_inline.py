"""Functions that only their own program calls, by inline hooks: BPF's numbers, and afterwards every byte is as it was."""

import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.pairs.conftest import FLAGS, POOL, WORKLOADS
from tests.sessions.pairs.kept import check_kept, held
from tests.support.attached_session import contents_of, layout_of, order, started
from tests.support.gcc import gcc
from tests.support.inline_session import PROBED, PROBED_S
from tests.support.program_server import start_program
from tests.support.workloads import ROOT, need

pytestmark = pytest.mark.compares_code

SECONDS = 120


def built(folder: Path, compiler: str, *words: str | Path) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    program = folder / "program"
    subprocess.run([compiler, *FLAGS, "-fvisibility=hidden", "-o", program, *words], check=True)
    return program


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patched")
    part = folder / "pool.o"
    built(folder, "gcc", "-std=gnu11", "-Dmain=pool_main", "-c", WORKLOADS / "pool.c").rename(part)
    return built(folder, "gcc", WORKLOADS / "patched_main.c", part)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("hidden"), "g++", WORKLOADS / "patched.cc")


def started_once_unprobed(words: Sequence[str]) -> subprocess.Popen[str]:
    """The session, which has printed something. Repeats it if another tracer's uprobes are in libc's code."""
    deadline = time.monotonic() + PROBED_S
    while True:
        session = start_program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if session.stdout.readline():
            return session
        said = session.communicate()[1]
        assert PROBED in said and time.monotonic() < deadline, said
        time.sleep(0.2)


def measured(
    process: subprocess.Popen[bytes],
    folder: Path,
    sets: Sequence[str],
    meanwhile: Callable[[], object],
    tracer: str = "inline",
) -> tuple[dict[str, Any], str]:
    """The report of a session in which `meanwhile` was called, and what was said. Code and slots are as before."""
    need("bpf") if tracer == "bpf" else None
    before, layout, report = contents_of(process.pid), layout_of(process.pid), folder / "report.json"
    pairs = (word for one in sets for word in ("--pairs", one))
    words = ["--tracer", tracer, *pairs, "--json", str(report), "--force"]
    words += ["--interval", "1s", "--pid", str(process.pid)]
    with started_once_unprobed(words) as session:
        meanwhile()
        session.send_signal(2)
        _, said = session.communicate(timeout=SECONDS)
    is_in_part = any(sentence in said for sentence in ("cannot be patched", "which has a hook there"))
    assert session.returncode == (6 if is_in_part else 0), said
    assert contents_of(process.pid) == before
    assert layout_of(process.pid) == layout
    parsed: dict[str, Any] = json.loads(report.read_text())
    assert not parsed["totals"]["lost"]
    assert parsed["target"]["tracer"] == tracer
    return parsed, said


@pytest.mark.parametrize("tracer", [pytest.param("bpf", marks=pytest.mark.bpf), "inline"])
@pytest.mark.parametrize("heap", [("malloc",), pytest.param((), marks=pytest.mark.proof)])
def test_a_pool_that_is_hidden(tracer: str, heap: tuple[str, ...], pool: Path, tmp_path: Path) -> None:
    with started(pool) as process:
        sets = (*heap, "fd", "pthread", POOL)
        report, _ = measured(process, tmp_path, sets, lambda: order(process, b"k"), tracer)
        check_kept(report)
        assert order(process, b"k") == b"done\n"


@pytest.mark.proof
def test_other_pairs_in_the_same_process(pool: Path, tmp_path: Path) -> None:
    """Moved code stays: what one session has left is none of the next one's, and is found again by its like."""
    with started(pool) as process:
        for sets in [(POOL, "fd", "pthread"), ("fd",), (POOL,), ("malloc", "fd"), (POOL, "fd", "pthread")]:
            report, _ = measured(process, tmp_path, sets, lambda: order(process, b"k"))
            kinds = {site["kind"] for site in report["sites"]} - {"runtime"}
            assert kinds == {f"pair:{Path(one).stem}" for one in sets if one != "malloc"}
        check_kept(report)


def test_by_offset_where_there_are_no_names(pool: Path, tmp_path: Path) -> None:
    listing = subprocess.run(["nm", pool], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    at = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    text = subprocess.run(["readelf", "-lW", pool], capture_output=True, text=True, check=True).stdout
    code = next(line.split() for line in text.splitlines() if "R E" in line)
    shift = int(code[2], 16) - int(code[1], 16)
    stripped, pairs = tmp_path / "stripped", tmp_path / "pool.toml"
    subprocess.run(["strip", "-o", stripped, pool], check=True)
    names = ("pool_take", "pool_take_many", "pool_open", "pool_resize", "pool_give")
    words = Path(POOL).read_text()
    for name in names:
        words = words.replace(f'"{name}"', f'"+{at[name] - shift:#x}"')
    pairs.write_text(words.replace('library = ["", "libpool.so"]', ""))
    with started(stripped) as process:
        report, _ = measured(process, tmp_path, (str(pairs),), lambda: order(process, b"k"))
    found = Counter({site["inuse_space"]: site["inuse_objects"] for site in report["sites"]})
    assert found == {30 * 1001: 30, 200: 1, 300: 1, 700: 1}


def test_what_cannot_be_patched_is_named_and_the_rest_goes_on(hidden: Path, tmp_path: Path) -> None:
    with started(hidden) as process:
        answers: list[bytes] = []
        keep = lambda: answers.append(order(process, b"k"))
        report, said = measured(process, tmp_path, (str(WORKLOADS / "patched.toml"),), keep)
    usable, _ = map(int, answers[0].split())
    assert "pair kept: own_pid cannot be patched: `syscall` is not known to move" in said
    held_bytes = Counter[str]()
    for site in report["sites"]:
        held_bytes[site["kind"]] += site["inuse_space"]
    assert held_bytes == {"pair:store": 23 * 5003, "pair:kept": usable}


def test_beside_threads_that_never_pause(hidden: Path, tmp_path: Path) -> None:
    with started(hidden, "2") as process:
        for _ in range(2):
            report, _ = measured(
                process, tmp_path, (str(WORKLOADS / "patched.toml"), "malloc"), lambda: order(process, b"k")
            )
            (site,) = (one for one in report["sites"] if one["inuse_space"] == 23 * 5003)
            assert (site["kind"], site["inuse_objects"]) == ("pair:store", 23)


@pytest.fixture
def with_own_heap(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """kept_registers.c, running, and a pair of its two functions."""
    program, pairs = tmp_path / "kept", tmp_path / "own.toml"
    gcc("-O2", "-fvisibility=hidden", "-o", program, ROOT / "tests/device/programs/kept_registers.c")
    pairs.write_text(
        '[own]\nacquire = {function = "malloc", size = "argument 1"}\nrelease = {function = "free"}\n'
    )
    with started(program) as process:
        yield process, str(pairs)


def test_registers_that_a_function_leaves_alone_stay(
    with_own_heap: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    """Callers that see its code rely on more than the ABI says (GCC's -fipa-ra)."""
    process, pairs = with_own_heap
    answers: list[bytes] = []
    both = lambda: answers.extend((order(process, b"m"), order(process, b"b")))
    report, _ = measured(process, tmp_path, (pairs,), both)
    assert answers == [b"kept\n", b"kept\n"]
    assert [(site["inuse_space"], site["inuse_objects"]) for site in report["sites"]] == [(48, 1)]


def test_one_function_is_not_patched_twice(
    with_own_heap: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, pairs = with_own_heap
    report, said = measured(process, tmp_path, (pairs, "malloc"), lambda: order(process, b"m"))
    assert "pair own: malloc belongs to the heap, which has a hook there" in said
    assert held(report, "pair:own") == {}
