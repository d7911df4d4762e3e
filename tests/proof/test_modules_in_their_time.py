"""Short-lived processes and libraries that reuse each other's addresses: every stack named in the right module."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.workloads import Run, both_tracers, build, built, functions, plugin, run

THOUSAND = [pytest.mark.proof, pytest.mark.timeout(400)]


def held_by_plugins(result: Run) -> Counter[tuple[str, str]]:
    """Bytes by the leaking function and the module it is named in."""
    found = Counter[tuple[str, str]]()
    for site in result.sites():
        if "leak" in functions(site):
            found[functions(site)[1], Path(site["frames"][1]["module"]).name] += site["inuse_space"]
    return found


@both_tracers
@pytest.mark.parametrize(
    ("words", "leaks"),
    [
        (("one_after_another",), 3),  # at the same address
        (("threads_in_plugins", "50"), 50 * 4 * 3),  # they come and go among busy threads
    ],
)
def test_libraries(tracer: str, words: tuple[str, ...], leaks: int, tmp_path: Path) -> None:
    plugins = [plugin(tmp_path, which, size) for which, size in (("one", 1013), ("two", 1019))]
    result = run(tracer, tmp_path, "--", built(words[0]), *words[1:], *plugins)
    assert result.report["target"]["exit_status"] == 0, "they were not at the same address"
    assert held_by_plugins(result) == {
        ("leak_one", "libone.so"): leaks * 1013,
        ("leak_two", "libtwo.so"): leaks * 1019,
    }


@both_tracers
@pytest.mark.parametrize("processes", [50, pytest.param(1000, marks=THOUSAND)])
def test_processes_of_5_ms(tracer: str, processes: int, tmp_path: Path) -> None:
    program = build("many_processes", tmp_path)
    result = run(tracer, tmp_path, "--", program, str(processes), options=["--follow"], timeout_s=390)
    assert result.amounts() == (processes * 7 * 1009, processes * 7)
    assert result.totals["unattributed_objects"] == 0
    named = Counter[tuple[str, str, str]]()
    for site in result.sites():
        frame = site["frames"][1]
        named[frame["function"], Path(frame["module"]).name, site["end"]] += site["inuse_objects"]
    assert named == {("leak_in_child", "many_processes", "ROOT"): processes * 7}
