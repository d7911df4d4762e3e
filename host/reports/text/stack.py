"""A stack's lines: the innermost frames and the program's own scripts, without an interpreter's frames between them."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from memleak_android.host.profile.culprit import Role, responsible_frame, roles
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.runtime_sites import PYTHON_IMPORT_FILES, SCRIPT_FRAMES
from memleak_android.host.reports.base import ReportOptions, frame_text

INNERMOST = 12
SHOWN_MAX = 24
_OF_INTERPRETER, _MORE = "of the interpreter", "more (-vv shows every frame)"


def stack_lines(frames: Sequence[Frame], options: ReportOptions) -> Iterator[str]:
    """The frames with their numbers, innermost first."""
    width = len(str(max(len(frames) - 1, 0)))
    left_out = [""] * len(frames) if options.verbose > 1 else _left_out(frames)
    for why, group in groupby(range(len(frames)), key=left_out.__getitem__):
        numbers = list(group)
        if why:
            yield f"       {'…':<{width + 1}}  {len(numbers):,} {why}"
            continue
        yield from (f"       #{number:<{width}}  {frame_text(frames[number])}" for number in numbers)


def _left_out(frames: Sequence[Frame]) -> list[str]:
    """Why each frame is not shown, "" where it is. No frame of the interpreter is before the innermost script."""
    found, shown, is_in_script = list[str](), 0, False
    role_of = {id(frame): role for frame, role in roles(frames)}
    responsible = responsible_frame(frames)
    for frame in frames:
        is_script = frame.module in SCRIPT_FRAMES
        is_in_script |= is_script
        role = role_of.get(id(frame))
        is_own = frame is responsible or (is_script and role in (Role.OWN, Role.NAMED_OWN))
        is_of_import = is_script and (frame.file or "").startswith(PYTHON_IMPORT_FILES)
        is_of_interpreter = not is_script and is_in_script and role in (Role.INTERPRETER, Role.EVALUATES)
        if shown < INNERMOST and (is_of_import or is_of_interpreter) and not is_own:
            found.append(_OF_INTERPRETER)
        elif shown < INNERMOST or (is_own and shown < SHOWN_MAX):
            found.append("")
            shown += 1
        else:
            found.append(_MORE)
    if found.count(_MORE) == 1:  # its line is no shorter
        found[found.index(_MORE)] = ""
    return found
