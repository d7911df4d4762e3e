"""One line per call, at its end."""

from collections.abc import Iterable, Sequence
from typing import TextIO

from memleak_android.host.snoop.events import CallEvent
from memleak_android.host.snoop.placing import SnoopedFunction
from memleak_android.host.snoop.statistics import show_duration
from memleak_android.host.wire.calls import CallType

_INDENT_MAX = 40
_INDENTS = tuple("  " * depth for depth in range(_INDENT_MAX + 1))
_ENTRY, _EXIT = map(int, (CallType.ENTRY, CallType.EXIT))  # an enum look-up costs as much as a test


class LivePrint:
    """`SECONDS PID/TID   name(arguments) = result <12.3 us>`, indented by depth.

    Seconds are CLOCK_MONOTONIC's.

    with_entries: a line at the entry, too.
    """

    def __init__(self, functions: Sequence[SnoopedFunction], output: TextIO, with_entries: bool) -> None:
        self._functions = functions
        self._output = output
        self._with_entries = with_entries

    def write(self, events: Iterable[CallEvent]) -> None:
        lines = [
            self._line(event)
            for event in events
            if event.type != _ENTRY or self._with_entries or not self._functions[event.number].has_return
        ]
        if lines:
            self._output.write("\n".join(lines) + "\n")
            self._output.flush()

    def close(self) -> None:
        pass

    def _line(self, event: CallEvent) -> str:
        kind, number, timestamp_ns, _, depth, tgid, tid, arguments, result, duration_ns, stack = event
        function = self._functions[number]
        if kind == _EXIT:
            end = f" = {result} <{show_duration(duration_ns)}>"
        elif kind == _ENTRY:
            end = " …" if function.has_return else ""
        else:
            end = " left without a visible return"
        indent = _INDENTS[min(_INDENT_MAX, depth)]
        shown = "?" if arguments is None else ", ".join(arguments)
        line = f"{timestamp_ns / 1e9:.6f} {tgid}/{tid} {indent}{function.name}({shown}){end}"
        return "\n".join([line, *(f"    {indent}{frame}" for frame in stack)]) if stack else line
