"""Leaks whose stacks take turns: they are one place, which grows though none of its stacks may. And what is freed at exit."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.program_server import run_program
from tests.support.workloads import PROGRAM, built, need

PRINTS = 20
SIZE = 41


IMPORTED = "import json, select, sys\nKEPT = []\nwhile not select.select([sys.stdin], [], [], 0.001)[0]: KEPT.append(json.loads('[\"%d\"]' % len(KEPT)))"


def report_of(
    how: str | Sequence[str],
    tmp_path: Path,
    *options: str,
    tracer: str = "preload",
    ends: bool = False,
    prints: int = PRINTS,
) -> tuple[dict[str, Any], str, int]:
    """The report, the text and the exit code of a session that is ended, or whose program `ends`, after some interval prints."""
    need(tracer)
    report = tmp_path / "report.json"
    words = ["--tracer", tracer, "--interval", "200ms", "--json", str(report), *options]
    command = [str(built("one_place")), how] if isinstance(how, str) else how
    argv = [*PROGRAM, *words, "--", *command]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=subprocess.STDOUT, text=True) as session:
        while prints and (line := session.stdout.readline()):
            prints -= line.startswith("[") and "Top " in line
        if not ends:
            session.send_signal(signal.SIGINT)
        text, _ = session.communicate(timeout=120)
    return json.loads(report.read_text()), text, session.returncode


@pytest.mark.parametrize("how", ["callers", "depth"])
def test_stacks_of_one_place_are_one_leak(how: str, tmp_path: Path) -> None:
    report, text, exit_code = report_of(how, tmp_path, "--fail-on-growth", "1kB/min")
    assert (report["answer"]["state"], report["answer"]["growing"]) == ("leaking", 1)
    (place,) = (one for one in report["places"] if one["function"] == "make_handle")
    held = [site for site in report["sites"] if report["places"][site["place"]] == place]
    assert place["stacks"] == len(held) > 2
    assert place["space"] == sum(site["inuse_space"] for site in held) == SIZE * place["objects"]
    growth, rate = place["growth"], place["growth_bytes_per_s"]
    since_s = (report["growth_span"]["to_ns"] - growth["since_ns"]) / 1e9
    assert growth["trend"] == "grows" and rate * since_s == pytest.approx(growth["rise"], rel=0.15)
    assert report["answer"]["growth_bytes_per_s"] == pytest.approx(rate, rel=0.1)
    assert exit_code == 23 and text.count("\nLEAKING  ") == 1


@pytest.mark.parametrize("tracer", ["preload", "bpf"])
def test_what_is_freed_at_exit_has_grown(tracer: str, tmp_path: Path) -> None:
    """Nothing is held in the end: the program was judged before its exit handlers ran. A recording of it says the same."""
    recording = tmp_path / "x.memleak"
    report, text, _ = report_of("freed", tmp_path, "-o", str(recording), tracer=tracer, ends=True)
    again = run_program(["report", recording, "--format", "json"])
    answer, said = json.loads(again.stdout)["answer"], report["answer"]
    assert (answer["state"], answer["growing"]) == (said["state"], said["growing"])
    assert answer["growth_bytes_per_s"] == pytest.approx(said["growth_bytes_per_s"], rel=0.05)
    (place,) = (one for one in report["places"] if one["function"] == "make_handle")
    assert (report["answer"]["state"], place["growth"]["trend"]) == ("leaking", "grows")
    assert (
        place.get("space") == 0 and place["freed"] % SIZE == 0 and place["freed"] >= place["growth"]["rise"]
    )
    assert "freed at exit" in text
    (callers,) = (line for line in text.splitlines() if line.startswith("     └ "))
    (site,) = (one for one in report["sites"] if not one["inuse_objects"])
    assert "main" in callers and site["growth"] == place["growth"]
    assert site["frames"][1]["function"] == "make_handle"


def test_a_module_that_leaks_while_it_is_imported(tmp_path: Path) -> None:
    """Sums leave out what an import allocates once. This module allocates in a loop, and the interpreter frees all at its exit."""
    (tmp_path / "imported.py").write_text(IMPORTED)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import imported"]
    report, _, _ = report_of(command, tmp_path, ends=True, prints=8)
    fastest = max(report["places"], key=lambda one: one.get("growth_bytes_per_s", 0))
    assert report["answer"]["state"] == "leaking" and fastest["file"] == str(tmp_path / "imported.py")
