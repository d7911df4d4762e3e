"""Joins the entries and ends of calls as they arrive from the agent."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memleak_android.host.snoop.formats import Captured
from memleak_android.host.snoop.placing import SnoopedFunction
from memleak_android.host.wire.calls import RETURN, Calls, CallType

_ENTRY, _EXIT = map(int, (CallType.ENTRY, CallType.EXIT))  # an enum look-up costs as much as a test
_NOTHING: dict[int, Captured] = {}
TAIL = "tail call"  # left by a jump to another function, which returns instead
_OPEN_MAX = 1 << 20  # open entries; beyond that the oldest are dropped


class CallEvent(NamedTuple):
    """One entry or end of a call.

    number: of the function.
    arguments: as shown, of the entry; None if the entry was lost.
    result: as shown, of EXIT.
    duration_ns: of ends; of UNPAIRED until it was noticed.
    stack: of the entry, innermost first; () without --stacks.
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
    """Formatters of one function's calls. arguments: (number, formatter) of the shown arguments."""

    __slots__ = ("arguments", "has_return", "result")

    def __init__(self, function: SnoopedFunction) -> None:
        arguments = enumerate(function.format.arguments)
        self.arguments = [(i, value.shower()) for i, value in arguments if value.kind != "-"]
        self.result = function.format.result.shower()
        self.has_return = function.has_return


class CallJoin:
    """Keeps arguments and stacks of calls in progress.

    stack_of: the stack at a call's entry.
    """

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
