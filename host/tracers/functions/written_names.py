"""Written names of C++ functions: without parameters, return type or a template's arguments."""

import re
from fnmatch import fnmatchcase

_COMMA = re.compile(r",\s+")
_CLONES = re.compile(r"( \(\.[^()]*\)| \[clone [^\]]*\])+$")
_QUALIFIERS = re.compile(r"(\[abi:\w+\]| const| volatile| &&?)*$")
_OPERATOR = re.compile(r"(?<![\w$])operator(?![\w$])")
# Itanium C++ ABI, 5.1.4: vtables, thunks and guards are not callable functions.
SPECIAL_NAMES = ("_ZT", "_ZG")


def normal_name(name: str) -> str:
    """A name or glob without the blanks that demanglers put after commas."""
    return _COMMA.sub(",", name.strip())


def is_called(shown: str, glob: str) -> bool:
    """Whether a glob matches a demangled function."""
    return any(fnmatchcase(one, normal_name(glob)) for one in written_names(shown))


def written_names(shown: str) -> list[str]:
    """All names by which a demangled function may be requested, itself first; normal_name() of each.

    `int ns::scale<int, 3>(int)` (an instance of a template, whose return type is part of its name) is also
    `ns::scale<int,3>(int)`, `ns::scale<int,3>` and `ns::scale`.
    """
    whole = normal_name(shown)
    plain = _CLONES.sub("", whole)
    head, parameters = _split_parameters(plain)
    name = head[_after_return_type(head) :]
    names = [whole, plain, head, name + parameters, name, _without_arguments(name)]
    return [one for one in dict.fromkeys(names) if one]


def _split_parameters(name: str) -> tuple[str, str]:
    """`f(int) const` → `f` and `(int) const`; a name with another end has no parameters."""
    match = _QUALIFIERS.search(name)
    end = match.start() if match else len(name)
    start = _opening(name[:end], "(", ")")
    return (name[:start], name[start:]) if start > 0 else (name, "")


def _opening(text: str, left: str, right: str) -> int:
    """Offset of the bracket that the end of `text` closes; -1 if there is none."""
    if not text.endswith(right):
        return -1
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == right) - (text[at] == left)
        if not depth:
            return at
    return -1


def _after_return_type(head: str) -> int:
    """After the last blank outside of all brackets. Blanks after `operator` belong to the name (`operator bool`)."""
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
