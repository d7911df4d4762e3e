"""Names of C++ functions as people write them: without parameters, return type or a template's arguments."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

_COMMA = re.compile(r",\s+")
_CLONES = re.compile(r"( \(\.[^()]*\)| \[clone [^\]]*\])+$")
_QUALIFIERS = re.compile(r"(\[abi:\w+\]| const| volatile| &&?)*$")
_OPERATOR = re.compile(r"(?<![\w$])operator(?![\w$])")
# Itanium C++ ABI, 5.1.4: vtables, thunks and guards are no functions that anybody calls by these names.
SPECIAL_NAMES = ("_ZT", "_ZG")


def normal_name(name: str) -> str:
    """A name or glob without the blanks that demanglers put behind commas."""
    return _COMMA.sub(",", name.strip())


def is_called(shown: str, glob: str) -> bool:
    """Whether a glob means the function that is shown so."""
    return any(fnmatchcase(one, normal_name(glob)) for one in written_names(shown))


def written_names(shown: str) -> list[str]:
    """All names that a demangled one may be asked for by, itself first; normal_name() of each.

    `int ns::scale<int, 3>(int)` (a template's instance, whose return type is a part of its name) is
    `ns::scale<int,3>(int)`, `ns::scale<int,3>` and `ns::scale`, too.
    """
    whole = normal_name(shown)
    plain = _CLONES.sub("", whole)
    head, parameters = _split_parameters(plain)
    name = head[_after_return_type(head) :]
    names = [whole, plain, head, name + parameters, name, _without_arguments(name)]
    return [one for one in dict.fromkeys(names) if one]


def _split_parameters(name: str) -> tuple[str, str]:
    """`f(int) const` → `f` and `(int) const`; what ends otherwise is no function with parameters."""
    match = _QUALIFIERS.search(name)
    end = match.start() if match else len(name)
    start = _opening(name[:end], "(", ")")
    return (name[:start], name[start:]) if start > 0 else (name, "")


def _opening(text: str, left: str, right: str) -> int:
    """Where the bracket was opened that `text` ends by closing; -1 where it does not."""
    if not text.endswith(right):
        return -1
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == right) - (text[at] == left)
        if not depth:
            return at
    return -1


def _after_return_type(head: str) -> int:
    """Behind the last blank outside of all brackets; blanks behind `operator` are its own (`operator bool`)."""
    operator = _OPERATOR.search(head)
    depth, found = 0, 0
    for at, letter in enumerate(head[: operator.start() if operator else len(head)]):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == " " and not depth:
            found = at + 1
    return found


def _without_arguments(name: str) -> str:
    start = -1 if _OPERATOR.search(name) else _opening(name, "<", ">")
    return name[:start] if start > 0 else name
