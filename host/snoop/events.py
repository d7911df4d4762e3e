"""Calls as they come from the agent: entries joined with their ends, for whoever shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memleak_android.host.snoop.formats import Captured
from memleak_android.host.snoop.placing import SnoopedFunction
from memleak_android.host.wire.calls import RETURN, Calls, CallType

_ENTRY, _EXIT = (
    int(CallType.ENTRY),
    int(CallType.EXIT),
)  # a look-up in the class takes as long as the rest of a test
_NOTHING: dict[int, Captured] = {}
TAIL = "tail call"  # it was left by a jump to another function, whose value is its own
_OPEN_MAX = 1 << 20  # entries whose end has not come; beyond that the oldest are forgotten


class CallEvent(NamedTuple):
    """One entry or end. arguments: as shown, of the entry; None where that was lost. result: of EXIT, as shown.

    number: of the function. stack: of the entry, from the function outwards; () = not asked for. duration_ns: of ends; for UNPAIRED until it was noticed.
    """

    type: int
    number: int
    timestamp_ns: int
    call: int
    depth: int
    tgid: int
    tid: int
    arguments: tuple[str, ...] | None
    result: str = ""
    duration_ns: int = 0
    stack: tuple[str, ...] = ()


_Entry = tuple[tuple[str, ...] | None, tuple[str, ...]]  # arguments, stack
_LOST: _Entry = (None, ())


class _Shown:
    """How the calls of one function are shown. arguments: (number, shower) of those that are."""

    __slots__ = ("arguments", "has_return", "result")

    def __init__(self, function: SnoopedFunction) -> None:
        arguments = enumerate(function.format.arguments)
        self.arguments = [(i, one.shower()) for i, one in arguments if one.kind != "-"]
        self.result = function.format.result.shower()
        self.has_return = function.has_return


class CallJoin:
    """Remembers the arguments and stacks of calls in progress. stack_of: the stack at a call's entry."""

    def __init__(
        self,
        functions: Sequence[SnoopedFunction],
        stack_of: Callable[[int], tuple[str, ...]] = lambda call: (),
    ) -> None:
        self._shown = [_Shown(function) for function in functions]
        self._stack_of = stack_of
        self._open: dict[int, _Entry] = {}

    def events(self, calls: Calls) -> Iterator[CallEvent]:
        columns = [calls.rows[name].tolist() for name in calls.rows.dtype.names or ()]
        for row in zip(*columns, strict=True):
            offset, kind, n_captures, timestamp_ns, call, number, depth, tgid, tid, duration_ns, values = row
            if number >= len(self._shown):
                continue
            function = self._shown[number]
            captures = calls.captures(offset, n_captures) if n_captures else _NOTHING
            result = ""
            if kind == _ENTRY:
                arguments: tuple[str, ...] | None = tuple(
                    [show(values[i], captures.get(i)) for i, show in function.arguments]
                )
                stack = self._stack_of(call)
                if function.has_return:
                    self._remember(call, (arguments, stack))
            else:
                arguments, stack = self._open.pop(call, _LOST)
                if kind == _EXIT:
                    result = TAIL if values[1] else function.result(values[0], captures.get(RETURN))
            yield CallEvent(
                kind, number, timestamp_ns, call, depth, tgid, tid, arguments, result, duration_ns, stack
            )

    def _remember(self, call: int, entry: _Entry) -> None:
        if len(self._open) >= _OPEN_MAX:
            del self._open[next(iter(self._open))]
        self._open[call] = entry
