"""Pair files: TOML → families of functions that acquire and release. docs/use/pairs.md documents them."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from memleak_android.host.errors import UsageError
from memleak_android.host.pairs.operands import VALUES_MAX, Condition, Handle, condition_of, handle_of
from memleak_android.host.profile.field_types import BYTE
from memleak_android.unwind.file_reading import read_file

# traced without --pairs; host/tracers/probes/allocator.py finds the object that provides it
HEAP_SET = "malloc"
_SETS = Path(__file__).parent
_HELP = "see docs/use/pairs.md"
_NOUN = re.compile(r"[a-z][a-z -]{0,29}")
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,40}")
_SIZE_FUNCTION = re.compile(
    r"(malloc_usable_size(?= *$)|[A-Za-z_]\w{0,99}(?= *\())(?: *\( *handle *\))?", re.ASCII
)
_ARGUMENT = re.compile(r"(\*?)\s*argument ([1-6])")
_THROUGH_END = 7  # ML_PAIR_THROUGH_END
_FAMILY_KEYS = {
    *("library", "nesting", "handle_bytes", "handles_of", "optional", "early_release", "counts", "acquire"),
    *("release",),
}
_CALL_KEYS = {"function", "library", "tracer", "when", "handle", "success"}
_RELEASE_KEYS = _CALL_KEYS | {"through"}
_ACQUIRE_KEYS = _CALL_KEYS | {"size", "handles", "replaces", "old", "zero_frees"}
# BPF; the shim in the slots through which modules call a function by name; the shim in the patched function itself
PairRoute = Literal["probes", "slots", "patches"]
_ROUTES: dict[str, PairRoute | None] = {"any": None, "bpf": "probes", "preload": "slots"}
_SIZE_MAX = 2**40
_HANDLES_MAX = 2  # ML_PAIR_HANDLES
_NAMED_MAX = 64  # pairs of a file, functions that a rule names: no more functions are traced
_FILE_BYTES_MAX = 1 << 20


class Success(IntEnum):
    """enum ml_pair_success of device/pair_rule.h."""

    NOT_ZERO = 0
    ZERO = 1
    NOT_NEGATIVE = 2
    NOT_MINUS_1 = 3
    ALWAYS = 4


class Nesting(IntEnum):
    """enum ml_pair_nesting of device/pair_rule.h: which calls inside another of the family are part of that one."""

    OUTER = 0
    ALL = 1
    OWN_CODE = 2


_NESTING = {member.name.lower().replace("_", " "): member for member in Nesting}
_SUCCESS = {member.name.lower().replace("_", " ").replace("minus ", "-"): member for member in Success}


@dataclass(frozen=True, slots=True)
class PairRule:
    """One function, or several with the same meaning of their arguments.

    libraries: where each of the functions is searched, "" = in the program.
    size_arguments: the size is their product times `factor`.
    size_teller: the function that returns the size of a handle, "" = none.
    success: of a release, None = it counts at its entry.
    only: the only route that can use the rule.
    old: the argument that is released too if the call succeeds, as in realloc.
    zero_frees: a failing call for size 0 releases it too.
    through: the argument with the last of a range of released handles, 7 = no last one.
    """

    functions: tuple[str, ...]
    libraries: tuple[str, ...]
    is_release: bool
    handle: Handle
    size_arguments: tuple[int, ...] = ()
    factor: int = 1
    success: Success | None = Success.NOT_ZERO
    replaces: bool = False
    old: int = 0
    size_teller: str = ""
    when: Condition | None = None
    only: PairRoute | None = None
    through: int = 0
    zero_frees: bool = False

    def is_for(self, route: PairRoute) -> bool:
        """A route that patches functions can use every rule for probes: both see all callers."""
        return self.only in (None, "probes" if route == "patches" else route)

    @property
    def n_arguments(self) -> int:
        """Number of arguments, from the first on, that a route must read."""
        tested = self.when.operand.argument if self.when else 0
        last = self.through % _THROUGH_END
        return max(self.handle.argument, self.old, last, tested, *self.size_arguments, 0)

    @property
    def has_return(self) -> bool:
        """Whether a route must read the return value."""
        return not self.is_release or self.success is not None


@dataclass(frozen=True, slots=True)
class PairFamily:
    """Rules that share handles: one acquires them, another releases them.

    is_optional: missing functions are not a problem.
    is_of_process: a child that shares the memory (vfork) has handles of its own.
    is_early: a release may come before the acquiring call has returned.
    unit: byte, or what one handle is where no rule has a size.
    """

    name: str
    rules: tuple[PairRule, ...]
    nesting: Nesting = Nesting.OUTER
    handle_bytes: int = 8
    is_optional: bool = False
    is_of_process: bool = False
    is_early: bool = False
    unit: str = BYTE


@dataclass(slots=True)
class PairSets:
    """families: of all files. with_heap: malloc's too. problems: ignored parts, one sentence each."""

    families: list[PairFamily]
    with_heap: bool
    problems: list[str]


def read_pair_sets(words: tuple[str, ...]) -> PairSets:
    """words: files, or names of shipped sets. Raises UsageError if nothing in them is usable."""
    sets = PairSets([], HEAP_SET in words, [])
    for word in words:
        if word != HEAP_SET:
            _read(_path_of(word), sets)
    taken: set[str] = set()
    for family in sets.families:
        if family.name in taken:
            raise UsageError(f"--pairs: two pairs have the name {family.name}", "give one another")
        taken.add(family.name)
    if not sets.families and not sets.with_heap:
        raise UsageError("; ".join(sets.problems[:3]) or "--pairs names no pair", _HELP)
    return sets


def heap_family() -> PairFamily:
    """The heap's family, from the shipped set."""
    sets = PairSets([], True, [])
    _read(_SETS / f"{HEAP_SET}.toml", sets)
    return sets.families[0]


def shipped_sets() -> list[str]:
    """Names that --pairs accepts instead of a file."""
    return sorted(path.stem for path in _SETS.glob("*.toml"))


def _path_of(word: str) -> Path:
    if re.fullmatch(r"[\w-]+", word) and not Path(word).exists():
        path = _SETS / f"{word}.toml"
        if not path.exists():
            raise UsageError(f"--pairs {word}: no such file or set", f"sets are {', '.join(shipped_sets())}")
        return path
    return Path(word)


def _read(path: Path, sets: PairSets) -> None:
    document = read_document(path, _HELP)
    if len(document) > _NAMED_MAX:
        raise UsageError(f"{path} has {len(document)} pairs, at most {_NAMED_MAX} are read", "make two files")
    for name, table in document.items():
        label = f"{path}: [{name}]"
        try:
            if not _NAME.fullmatch(name):
                raise UsageError(f"{label}: a pair's name is letters, digits and _ . + -", _HELP)
            sets.families.append(_family(label, name, table, sets.problems))
        except UsageError as error:
            sets.problems.append(str(error))


def read_document(path: Path, hint: str) -> dict[str, Any]:
    """A TOML file. Raises UsageError with the hint."""
    try:
        return tomllib.loads(read_file(path, _FILE_BYTES_MAX).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise UsageError(f"{path} cannot be read: it is nested too deep", hint) from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, and of numbers with very many digits
        raise UsageError(f"{path} is not TOML: {error}", hint) from None


def _family(label: str, name: str, table: Any, problems: list[str]) -> PairFamily:
    _check_keys(label, table, _FAMILY_KEYS)
    libraries = _libraries(label, table.get("library", ""))
    nesting = _value(label, table, "nesting", "outer", lambda value: value in _NESTING)
    handle_bytes = _value(label, table, "handle_bytes", 8, lambda value: value in (4, 8))
    rules: list[PairRule] = []
    for kind in ("acquire", "release"):
        rows = table.get(kind, [])
        rows = rows if isinstance(rows, list) else [rows]
        for number, row in enumerate(rows, 1):
            try:
                rule = _rule(f"{label} {kind} {number}", libraries, row, kind == "release")
                if rule.through and handle_bytes != 4:
                    raise UsageError(
                        f"{label} {kind} {number}: through is for handles of 4 bytes",
                        "write handle_bytes = 4",
                    )
                rules.append(rule)
            except UsageError as error:
                problems.append(str(error))
    for kind, is_release in (("acquire", False), ("release", True)):
        if not any(rule.is_release == is_release for rule in rules):
            raise UsageError(
                f"{label} has no {kind} that can be used", f"write [[{name}.{kind}]] and function = …"
            )
    is_optional, is_early = (
        _value(label, table, key, False, lambda value: isinstance(value, bool))
        for key in ("optional", "early_release")
    )
    owner = _value(label, table, "handles_of", "memory", lambda value: value in ("memory", "process"))
    has_sizes = any(rule.size_arguments or rule.size_teller or rule.factor > 1 for rule in rules)
    noun = _value(label, table, "counts", "handle", lambda value: bool(_NOUN.fullmatch(str(value))))
    return PairFamily(
        name, tuple(rules), _NESTING[nesting], handle_bytes, is_optional, owner == "process", is_early,
        BYTE if has_sizes else noun,
    )  # fmt: skip


def _rule(label: str, libraries: Sequence[str], row: Any, is_release: bool) -> PairRule:
    _check_keys(label, row, _RELEASE_KEYS if is_release else _ACQUIRE_KEYS)
    functions = row.get("function", [])
    functions = [functions] if isinstance(functions, str) else functions
    if (
        not isinstance(functions, list)
        or not functions
        or not all(isinstance(name, str) and name for name in functions)
    ):
        raise UsageError(f"{label}: function is not understood", "write a name, or a list of names")
    if len(functions) > _NAMED_MAX:
        raise UsageError(
            f"{label}: function names {len(functions)} functions", f"name at most {_NAMED_MAX}, or a glob"
        )
    libraries = _libraries(label, row["library"]) if "library" in row else libraries
    named = tuple(functions), tuple(libraries)
    only = _ROUTES[_value(label, row, "tracer", "any", lambda value: value in _ROUTES)]
    when = condition_of(label, row["when"]) if "when" in row else None
    if is_release:
        handle, success = (
            handle_of(label, row.get("handle", "argument 1"), 1, True),
            _success(label, row, None),
        )
        if handle.is_indirect and success is not None:
            raise UsageError(f"{label}: success needs a handle that is an argument", _HELP)
        through = _through(label, row.get("through"))
        if through and (handle.is_indirect or success is not None):
            raise UsageError(f"{label}: through needs a handle that is an argument, and no success", _HELP)
        return PairRule(*named, True, handle, success=success, when=when, only=only, through=through)
    teller = _size_teller(row.get("size"))
    arguments, factor = _size(label, 1 if teller else row.get("size", 1))
    count = _value(label, row, "handles", 1, lambda value: value in range(1, _HANDLES_MAX + 1))
    replaces = _value(label, row, "replaces", False, lambda value: isinstance(value, bool))
    handle = handle_of(label, row.get("handle", "return"), count, is_release)
    old = handle_of(label, row["old"], 1, True) if "old" in row else Handle()
    if old.is_indirect:
        raise UsageError(f"{label}: old = {row['old']!r} is not understood", "write argument N (1 to 6)")
    zero_frees = _value(label, row, "zero_frees", False, lambda value: isinstance(value, bool))
    success = _success(label, row, Success.NOT_ZERO)
    return PairRule(
        *named, False, handle, arguments, factor, success, replaces, old.argument, teller, when, only,
        zero_frees=zero_frees,
    )  # fmt: skip


def _success(label: str, row: dict[str, Any], default: Success | None) -> Success | None:
    if "success" not in row:
        return default
    return _SUCCESS[_value(label, row, "success", "", lambda value: value in _SUCCESS)]


def _through(label: str, value: Any) -> int:
    """`argument 2`, `end` → the argument, or 7; 0 = a call releases one handle."""
    match = _ARGUMENT.fullmatch(value) if isinstance(value, str) else None
    if match and not match[1]:
        return int(match[2])
    if value not in (None, "end"):
        raise UsageError(
            f"{label}: through = {value!r} is not understood", "write argument N (1 to 6), or end"
        )
    return _THROUGH_END if value else 0


def _libraries(label: str, value: Any) -> list[str]:
    """Names, globs, `regex:PATTERN` and `build-id:HEX` of files; "" = the program."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(library, str) for library in values):
        raise UsageError(f"{label}: library is not understood", "write a text, or a list of texts")
    for library in values:
        try:
            re.compile(library.partition("regex:")[2])
        except re.error as error:
            raise UsageError(
                f"{label}: library = {library!r} is not a regular expression: {error}", _HELP
            ) from None
    return values


def _size_teller(value: Any) -> str:
    """`malloc_usable_size`, `je_sallocx(handle)` → the function's name; "" = not a function."""
    match = _SIZE_FUNCTION.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else ""


def _size(label: str, value: Any) -> tuple[tuple[int, ...], int]:
    """`64`, `argument 1`, `argument 1 * argument 2`, `argument 1 * 16` → arguments and factor."""
    arguments, factor = [], 1
    for part in [str(value)] if isinstance(value, int) else str(value).split("*"):
        match = _ARGUMENT.fullmatch(part.strip())
        if match and not match[1]:
            arguments.append(int(match[2]))
        elif part.strip().isdecimal() and int(part) <= _SIZE_MAX:
            factor *= int(part)
        else:
            raise UsageError(
                f"{label}: size = {value!r} is not understood",
                "write a number, argument N (1 to 6), a product of two, or FUNCTION(handle)",
            )
    if not factor:
        raise UsageError(
            f"{label}: size = {value!r}: blocks without a size are not counted as held",
            "remove size to count handles",
        )
    if len(arguments) > 2 or factor > _SIZE_MAX:
        raise UsageError(f"{label}: size = {value!r} is a product of more than two arguments", _HELP)
    return tuple(arguments), factor


def _value(label: str, table: dict[str, Any], key: str, default: Any, is_good: Callable[[Any], bool]) -> Any:
    value = table.get(key, default)
    if isinstance(value, list | dict) or not is_good(value):
        raise UsageError(f"{label}: {key} = {value!r} is not understood", _HELP)
    return value


def _check_keys(label: str, table: Any, known: set[str]) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{label} is not a table", _HELP)
    unknown = sorted(set(table) - known)
    if unknown:
        raise UsageError(f"{label}: unknown key {unknown[0]}", f"known are {', '.join(sorted(known))}")


_ALWAYS = Condition(Handle(), 0, (0,))


def rule_line(function: int, number: int, family: PairFamily, rule: PairRule) -> str:
    """`rule FUNCTION` and the numbers of struct ml_pair. function: enum ml_function; number: of the family, 0 = the heap.

    A release that may fail is what realloc does with the old block, and no more.
    """
    a, b = (*rule.size_arguments, 0, 0)[:2]
    handle, when = rule.handle, rule.when or _ALWAYS
    may_fail = rule.is_release and rule.success is not None
    numbers = (
        rule.is_release and not may_fail, number, family.nesting, a, b, rule.factor,
        handle.argument, handle.is_indirect + handle.is_received, family.handle_bytes, 0 if may_fail else handle.count,
        rule.success or 0, rule.replaces, handle.argument if may_fail else rule.old,
        bool(rule.size_teller), handle.offset, family.is_of_process, rule.through, family.is_early, rule.zero_frees,
        when.operand.argument, when.operand.is_indirect, when.operand.offset, when.mask, *when.values,
        *when.values[-1:] * (VALUES_MAX - len(when.values)),
    )  # fmt: skip
    return f"rule {function:x} " + " ".join(str(int(one)) for one in numbers)
