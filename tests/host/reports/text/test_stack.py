"""Which frames of a stack are shown."""

from dataclasses import replace

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.runtime_sites import PYTHON_FRAMES
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.text.stack import stack_lines
from tests.support.builders.profiles import LIBC, MALLOC, SERVER, frame

INTERPRETER = replace(frame(LIBC, "cfunction_call"), module="/usr/bin/python3.11")
EVALUATES = replace(frame(LIBC, "_PyEval_EvalFrameDefault"), module="/usr/bin/python3.11")


def python(function: str, source: str) -> Frame:
    return replace(frame(LIBC, function, 0, source), module=PYTHON_FRAMES)


def shown(*frames: Frame, verbose: int = 1) -> list[str]:
    """Without numbers and modules."""
    return [
        " ".join(line.split()[: 2 if "…" not in line else 3][1:])
        for line in stack_lines(frames, ReportOptions(verbose=verbose))
    ]


def test_an_interpreter_s_frames_between_code_in_python_are_counted() -> None:
    imports = python("_load", "<frozen importlib._bootstrap>:690")
    inner, outer = python("parse", "/srv/app.py:3"), python("serve", "/srv/app.py:9")
    frames = MALLOC, INTERPRETER, inner, EVALUATES, imports, INTERPRETER, outer, EVALUATES
    assert shown(*frames) == ["malloc", "cfunction_call+0x0", "parse", "3 of", "serve", "1 of"]
    assert len(shown(*frames, verbose=2)) == len(frames)
    assert "       #2  parse  /srv/app.py:3" in list(stack_lines(frames, ReportOptions()))


def test_of_a_deep_stack_the_innermost_frames_are_shown() -> None:
    deep = [frame(SERVER, f"f{i}") for i in range(40)]
    assert shown(MALLOC, *deep)[-2:] == ["f10+0x0", "29 more"]
    assert len(shown(MALLOC, *deep, verbose=2)) == 41
    assert shown(MALLOC, *deep[:12])[-1] == "f11+0x0"


def test_the_program_s_own_frames_are_shown_however_deep_they_are() -> None:
    library = [replace(frame(LIBC, f"f{i}"), module="/lib/libc.so.6") for i in range(20)]
    own = frame(SERVER, "own")
    assert shown(MALLOC, *library, own, *library)[-3:] == ["9 more", "own+0x0", "20 more"]
    own = python("own", "/srv/app.py:3")
    scripts = [python(f"f{i}", "/usr/lib/python3.11/x.py:3") for i in range(20)]
    assert shown(MALLOC, *scripts, own, EVALUATES, own)[-4:] == ["9 more", "own", "1 more", "own"]
