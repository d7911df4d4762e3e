"""Classic leaks, and what looks like them: of each case the trend and who leads to its blocks.

EXPECTED is the table. Valgrind's memcheck judges the second column, on the same program; it knows no trend.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gcc import gcc
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
    """(case, kind) → blocks, by valgrind."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    xml = program.with_name("valgrind.xml")
    words = ["--leak-check=full", "--show-leak-kinds=all", "--leak-resolution=high", "--num-callers=50"]
    words += ["--leak-check-heuristics=none", "--xml=yes", f"--xml-file={xml}"]
    subprocess.run(
        ["valgrind", *words, program, str(ROUNDS_JUDGED), "at once"], check=True, capture_output=True
    )
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


def measured(tracer: str, folder: Path, program: Path, runs_ms: int, *options: str) -> list[dict[str, Any]]:
    """The sites of a measurement that ends while the program still lives; the largest of each case last."""
    done = run(tracer, folder, "--", program, str(runs_ms), options=["--interval", "500ms", *options])
    os.kill(done.report["target"]["pid"], signal.SIGKILL)
    return sorted(done.report["sites"], key=lambda site: site["inuse_space"])


@pytest.mark.proof
@both_tracers
def test_trend_of_each_case(tracer: str, program: Path, tmp_path: Path) -> None:
    sites = measured(tracer, tmp_path, program, 600_000, "--duration", "9s", "--warmup", "500ms")
    trends = {case_of(functions(site)): site["growth"]["trend"] for site in sites}
    trends.pop("", None)
    assert trends == {case: of[0] for case, of in EXPECTED.items() if of is not None}


@pytest.mark.proof
@both_tracers
def test_kind_of_each_case(tracer: str, program: Path, tmp_path: Path) -> None:
    """The program has come to rest when its memory is looked at: no block is on its way to another owner."""
    kinds: dict[str, set[str]] = {}
    for site in measured(tracer, tmp_path, program, 4_000, "--duration", "8s", "--reachability"):
        kinds.setdefault(case_of(functions(site)), set()).update(site.get("leaks", {}))
    kinds.pop("", None)
    assert kinds == {case: of[1] for case, of in EXPECTED.items() if of is not None}
