"""The table of cases, cases.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

_TABLE = Path(__file__).with_name("cases.toml")
LOOPS = Path(__file__).with_name("loops")


@dataclass(frozen=True, slots=True)
class Case:
    """A public report of a leak.

    report: where it was reported, as `TRACKER NUMBER`. package: its name in the registry. loop: a file of loops/ that repeats
    what leaks. libraries: those that a loop in C is linked with. functions: names of which one has to be in the place that we
    report first: those that the mending commit changed, or, of stripped libraries, what their symbol table has of the way there.
    faulty, mended: of Debian, suites. requires: further packages with versions.
    held_a_step: bytes that one step asks for and never frees, known from the mending commit; 0 = what RSS grows by in a
    step beyond that of the mended version, without any tool.
    python: the version of the interpreter; "" = the one that runs us. note: what one has to know to read the result.
    """

    id: str
    registry: str
    package: str
    faulty: str
    mended: str
    report: str
    loop: str
    functions: tuple[str, ...]
    requires: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    held_a_step: int = 0
    python: str = ""
    note: str = ""


def load(wanted: Collection[str] = ()) -> list[Case]:
    """All cases, or those named."""
    tables = tomllib.loads(_TABLE.read_text())
    cases = [msgspec.convert({"id": name, **row}, Case) for name, row in tables.items()]
    if unknown := set(wanted) - {one.id for one in cases}:
        raise SystemExit(f"no case {min(unknown)} (expected: {', '.join(one.id for one in cases)})")
    return [one for one in cases if not wanted or one.id in wanted]
