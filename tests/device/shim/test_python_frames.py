"""Functions and lines in Python in stacks, against the frames that the program has seen itself."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.python_extensions import interpreters
from tests.support.workloads import build, run, run_program

PROGRAM = Path(__file__).with_name("python_frames_program.py")
LIE = Path(__file__).parents[1] / "programs" / "no_python.c"
FRAMES_MAX = 128  # ML_PYTHON_FRAMES_MAX


def supported() -> list[str]:
    """3.10 to 3.13: those whose layout device/preload/stacks/python_layout.h has."""
    return [path for path, include in interpreters().items() if 10 <= int(include.name[8:].rstrip("t")) <= 13]


def python_frames(site: Mapping[str, Any]) -> list[list[Any]]:
    """[function, file, line], innermost first."""
    return [
        [frame["function"], frame["file"], frame["line"]]
        for frame in site["frames"]
        if frame["module"] == "[python]"
    ]


def by_size(report: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {site["inuse_space"] - 1: site for site in report["sites"] if site["inuse_objects"] == 1}


@pytest.mark.parametrize("interpreter", supported())
def test_each_frame_is_the_program_s_own(interpreter: str, tmp_path: Path) -> None:
    done = run("preload", tmp_path, "--", interpreter, PROGRAM)
    seen, sites = json.loads(done.out), by_size(done.report)
    for size, frames in ((int(size), frames) for size, frames in seen.items()):
        keep, *callers = python_frames(sites[size])
        assert keep[:2] == ["keep", str(PROGRAM)]
        assert callers == frames[: FRAMES_MAX - 1], size
        assert any("left out" in frame["function"] for frame in sites[size]["frames"]) == (
            len(frames) >= FRAMES_MAX
        )
    assert len(seen) == 15

    # sorted() calls back: which frames are further out is known by the C functions that run them
    shown = [frame["function"] for frame in sites[20_020]["frames"]]
    evaluated = [i for i, name in enumerate(shown) if name == "_PyEval_EvalFrameDefault"]
    inner, outer = shown.index("<lambda>"), shown.index("<module>")
    assert any(inner < i < outer for i in evaluated) and evaluated[-1] > outer


def test_lines_left_out(tmp_path: Path) -> None:
    words = ("--", sys.executable, PROGRAM)
    report = run("preload", tmp_path, *words, options=["--no-python-lines"]).report
    assert not any(python_frames(site) for site in report["sites"])


def test_a_recording_has_them(tmp_path: Path) -> None:
    recording = tmp_path / "x.memleak"
    words = ["record", "--tracer", "preload", "-o", recording, "--", sys.executable, PROGRAM]
    seen = json.loads(run_program(words, tmp_path, None, 280).stdout)
    run_program(["report", recording, "-o", tmp_path / "x.json"], tmp_path, None, 280)
    site = by_size(json.loads((tmp_path / "x.json").read_text()))[20_050]
    assert python_frames(site)[1:] == seen["20050"]


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    done = run("preload", tmp_path, "--", build(LIE, tmp_path, "-rdynamic"))
    assert done.out == "done\n"
    assert not any(python_frames(site) for site in done.report["sites"])
