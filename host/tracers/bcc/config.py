"""The part of the agent's input that this tracer supports (docs/wire-protocol.md §8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from memleak_android.host.errors import MemleakError
from memleak_android.host.wire.blocks import WIRE_VERSION


class BadConfiguration(MemleakError):
    """Lines that only a host of another version writes."""


@dataclass(frozen=True, slots=True)
class ProbedFunction:
    """A `probe` line: file offsets. return_offset: None = no return probe."""

    number: int  # enum ml_function
    offset: int
    entry_offset: int
    return_offset: int | None
    text_low: int
    text_high: int
    path: str


@dataclass(slots=True)
class Configuration:
    """stdio: descriptors that the command inherits, -1 = /dev/null."""

    pid: int = 0
    command: list[bytes] = field(default_factory=list)
    environment: dict[bytes, bytes] = field(default_factory=dict)
    stdio: tuple[int, ...] = (-1, -1, -1)
    stack_bytes: int = 0
    every_stack: bool = False
    min_size: int = 0
    max_size: int = 2**64 - 1
    max_live: int = 4_000_000
    probes: list[ProbedFunction] = field(default_factory=list)


def parse(lines: Iterable[str]) -> Configuration:
    """The configuration up to the line `start`. Raises BadConfiguration."""
    configuration = Configuration()
    for line in lines:
        key, _, value = line.rstrip("\n").partition(" ")
        if key == "start":
            return configuration
        try:
            _apply(configuration, key, value)
        except (ValueError, IndexError):
            raise BadConfiguration(f"unusable line: {line.strip()[:80]}") from None
    raise BadConfiguration("the configuration ended before `start`")


def _apply(configuration: Configuration, key: str, value: str) -> None:
    if key == "wire":
        if int(value) != WIRE_VERSION:
            raise BadConfiguration(f"the host speaks wire version {value}, the agent {WIRE_VERSION}")
    elif key == "arg":
        configuration.command.append(unquote_to_bytes(value))
    elif key == "env":
        name, _, content = unquote_to_bytes(value).partition(b"=")
        configuration.environment[name] = content
    elif key == "stdio":
        configuration.stdio = tuple(int(word) for word in value.split())
    elif key == "probe":
        configuration.probes.append(_probe(value.split()))
    elif key in ("pid", "stack_bytes", "min_size", "max_size", "max_live"):
        setattr(configuration, key, int(value))
    elif key == "every_stack":
        configuration.every_stack = bool(int(value))


def _probe(words: list[str]) -> ProbedFunction:
    number, offset, entry, back, low, high, path = words
    return ProbedFunction(
        int(number, 16),
        int(offset, 16),
        int(entry, 16),
        None if back == "-" else int(back, 16),
        int(low, 16),
        int(high, 16),
        unquote_to_bytes(path).decode("utf-8", "surrogateescape"),
    )
