"""Classic leaks, and what looks like them: of each case the trend and who leads to its blocks.

EXPECTED is the table. Valgrind's memcheck judges the second column, on the same program; it knows no trend.
"""

import json
import os
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.gcc import gcc
from tests.support.program_server import run_program
from tests.support.workloads import both_tracers, functions, run

HERE = Path(__file__).parent
DEFINITELY, INDIRECTLY = "definitely_lost", "indirectly_lost"
POSSIBLY, REACHABLE = "possibly_lost", "still_reachable"

# case: the function → (trend, kinds of its blocks); None = it holds nothing.
EXPECTED: dict[str, tuple[str, set[str]] | None] = {
    "leak_per_request": ("grows", {DEFINITELY}),
    "leak_on_error_path": ("grows", {DEFINITELY}),
    "cycle_of_blocks": ("grows", {DEFINITELY, INDIRECTLY}),
    "lost_head_of_list": ("grows", {DEFINITELY, INDIRECTLY}),
    "member_never_freed": ("grows", {DEFINITELY}),
    "text_overwritten": ("grows", {DEFINITELY, REACHABLE}),  # the last text is in use
    "cache_without_bound": ("grows", {REACHABLE}),
    "realloc_growth": ("grows", {REACHABLE}),
    "only_inside_referred_to": ("grows", {POSSIBLY}),
    "thread_never_joined": ("grows", {POSSIBLY}),
    "cache_with_bound": ("plateau", {REACHABLE}),
    "ring_in_use": ("steady", {REACHABLE}),
    "init_once": ("steady", {REACHABLE}),
    "burst": ("burst", {REACHABLE}),
    "pool_that_comes_and_goes": ("steady", {REACHABLE}),
    "one_page_replaced": ("steady", {REACHABLE}),
    "request_and_reply": None,
    "lost_in_initialisation": ("steady", {DEFINITELY}),
    "kept_in_initialisation": ("steady", {REACHABLE}),
}
BYTES_PER_ROUND = {"leak_per_request": 1009, "cache_without_bound": 96, "realloc_growth": 509}
ROUNDS_JUDGED = 130  # by valgrind: the burst is over, the cache is full
FLAGS = ("-O0", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaks")
    library, made = folder / "libleaky.so", folder / "classic_cases"
    gcc(*FLAGS, "-shared", "-fPIC", "-o", library, HERE / "leaky_library.c")
    needed = ["-Wl,--no-as-needed", library, f"-Wl,-rpath,{folder}"]
    gcc(*FLAGS, "-o", made, HERE / "classic_cases.c", *needed)
    return made


def case_of(names: Iterable[str]) -> str:
    """The innermost of the cases in a stack; "" where there is none."""
    return next((name for name in names if name in EXPECTED), "")


@pytest.fixture(scope="module")
def judged(program: Path) -> Counter[tuple[str, str]]:
    """(case, kind) → blocks, by most of valgrind's runs.

    A word of another stack layout looks like a pointer into a block at times, and the layout comes from the environment's bytes.
    """
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    runs = [judged_once(program, {"PATH": os.environ["PATH"], "PADDING": "x" * n}) for n in (0, 24, 104)]
    return max(runs, key=runs.count)


def judged_once(program: Path, environment: dict[str, str]) -> Counter[tuple[str, str]]:
    xml = program.with_name("valgrind.xml")
    words = ["--leak-check=full", "--show-leak-kinds=all", "--leak-resolution=high", "--num-callers=50"]
    words += ["--leak-check-heuristics=none", "--xml=yes", f"--xml-file={xml}"]
    command = ["valgrind", *words, program, str(ROUNDS_JUDGED), "at once"]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    found = Counter[tuple[str, str]]()
    for error in ET.parse(xml).iter("error"):
        case = case_of(frame.findtext("fn", "") for frame in error.iterfind("stack/frame"))
        kind = error.findtext("kind", "").removeprefix("Leak_")  # DefinitelyLost, StillReachable …
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).lstrip("_")
        if case and name:
            found[case, name] += int(error.findtext("xwhat/leakedblocks", "0"))
    return found


def test_the_table_is_what_valgrind_finds(judged: Counter[tuple[str, str]]) -> None:
    """Of a whole program; its verdicts are the oracle for ours below."""
    assert set(judged) == {(case, kind) for case, of in EXPECTED.items() if of is not None for kind in of[1]}


@both_tracers
def test_blocks_of_each_kind_at_the_end(
    tracer: str, program: Path, judged: Counter[tuple[str, str]], tmp_path: Path
) -> None:
    """The same program ends by itself after the same rounds: valgrind's counts, case by case."""
    command = (program, str(ROUNDS_JUDGED), "at once")
    done = run(tracer, tmp_path, "--", *command, options=["--reachability", "-T", "0"])
    found = Counter[tuple[str, str]]()
    for site in done.report["sites"]:
        for kind, one in site.get("leaks", {}).items():
            found[case_of(functions(site)), kind] += one["objects"]
    assert {at: blocks for at, blocks in found.items() if at[0]} == judged


@pytest.mark.proof
@both_tracers
def test_trend_of_each_case(tracer: str, program: Path, tmp_path: Path) -> None:
    """Rates are in the proportions of the source, whatever time a round took; the recording says the same."""
    view, out = ("--warmup", "500ms"), tmp_path / "out"
    how = ["--duration", "9s", "--interval", "500ms", *view, "-o", out]
    done = run(tracer, tmp_path, "--", program, "600000", options=how)
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    cases = {case_of(functions(site)): site for site in reversed(done.report["sites"])}  # the largest of each
    cases.pop("", None)
    trends = {case: site["growth"]["trend"] for case, site in cases.items()}
    assert trends == {case: of[0] for case, of in EXPECTED.items() if of is not None}
    rounds_per_s = cases["leak_per_request"]["growth_bytes_per_s"] / BYTES_PER_ROUND["leak_per_request"]
    assert 10 < rounds_per_s <= 40
    for case, expected in BYTES_PER_ROUND.items():
        growth, found = cases[case]["growth"], cases[case]["growth_bytes_per_s"]
        assert found == pytest.approx(expected * rounds_per_s, rel=0.1), case
        assert growth["low"] <= found <= growth["high"]
    again = run_program(["report", out / "recording.memleak", "--format", "json", *view])
    read = {case_of(functions(site)): site for site in json.loads(again.stdout)["sites"]}
    assert all(read[case]["growth"] == cases[case]["growth"] for case in BYTES_PER_ROUND)
