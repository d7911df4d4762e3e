"""Suppressions in LeakSanitizer's format: sites that do not count.

A line is `leak:TEMPLATE`; `#` begins a comment. A template matches anywhere in the name of a function, module or source
file. `*` matches any characters, `^` at the begin and `$` at the end match the name's ends
(https://clang.llvm.org/docs/AddressSanitizer.html#suppressing-memory-leaks, compiler-rt TemplateMatch).
"""

from collections.abc import Sequence
from pathlib import Path

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.site_id import NAME_MAX
from memleak_android.unwind.file_reading import read_file

FILE_BYTES_MAX = 1 << 20

# Types of other sanitizers, which may share the file.
OTHER_TYPES = frozenset(
    {
        *("race", "race_top", "mutex", "thread", "signal", "deadlock", "called_from_lib"),
        *("interceptor_name", "interceptor_via_fun", "interceptor_via_lib", "odr_violation"),
        *("alloc_dealloc_mismatch", "null", "alignment", "bounds", "vptr", "vptr_check", "function"),
        *("undefined", "enum", "shift", "float-cast-overflow"),
        *("signed-integer-overflow", "unsigned-integer-overflow"),
    }
)


def read_suppressions(path: Path) -> tuple[str, ...]:
    """Reads the templates of a file. Raises UsageError if it cannot be read or a line is not a suppression."""
    try:
        data = read_file(path, FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a file of suppressions") from None
    return parse_suppressions(data.decode("utf-8", "replace"), str(path))


def parse_suppressions(text: str, name: str) -> tuple[str, ...]:
    """name: of the file, for errors."""
    templates = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        kind, colon, template = line.partition(":")
        if colon and kind in OTHER_TYPES:
            continue
        if not colon or kind != "leak" or not template:
            shown = ascii(line[:60])
            raise UsageError(f"{name}:{number}: {shown} is not a suppression", "write leak:PATTERN")
        templates.append(template[:NAME_MAX])
    return tuple(dict.fromkeys(templates))


def matches(template: str, name: str) -> bool:
    """Matches as LeakSanitizer does: each piece between asterisks is searched once, from left to right."""
    if not name:
        return False
    is_anchored = template.startswith("^")
    at, is_free = 0, False  # is_free: an asterisk precedes the next piece
    body, dollar, _ = template.removeprefix("^").partition("$")
    pieces = body.split("*")
    for i, piece in enumerate(pieces):
        is_free = is_free or i > 0
        if not piece:
            continue
        found = name.find(piece, at)
        if found < 0 or (is_anchored and i == 0 and found > 0):
            return False
        at, is_free = found + len(piece), False
    return not dollar or at == len(name) or is_free


class Suppressions:
    """Templates, and the matches of names that were tested before."""

    def __init__(self, templates: Sequence[str]) -> None:
        self._templates = tuple(dict.fromkeys(templates))
        self._found: dict[str, str] = {}

    def find(self, frames: Sequence[Frame]) -> str:
        """The template that matches the innermost of the matched frames; "" = none."""
        for frame in frames:
            for name in (frame.module, frame.function, frame.file or ""):
                if template := self._of(name):
                    return template
        return ""

    def _of(self, name: str) -> str:
        if name not in self._found:
            bounded = name[:NAME_MAX]
            self._found[name] = next((one for one in self._templates if matches(one, bounded)), "")
        return self._found[name]


def template_of(frame: Frame) -> str:
    """A template that matches the frame's function, or the module of nameless code."""
    if not frame.function:
        name = frame.module.rsplit("/", 1)[-1]
        return f"{_literal(name)}$"
    exact = f"^{_literal(frame.function)}$"
    return exact if matches(exact, frame.function[:NAME_MAX]) else _literal(frame.function)


def _literal(name: str) -> str:
    """A name with asterisks for syntax and control characters; of long names the begin."""
    name = "".join("*" if char in "$^" or not char.isprintable() else char for char in name)
    return name if len(name) <= 400 else name[:400] + "*"
