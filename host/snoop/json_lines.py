"""Calls as JSON: one object per event and line, then the statistics; or Chrome's trace event format, which Perfetto reads too."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import BinaryIO

import msgspec

from memleak_android.host.snoop.events import CallEvent
from memleak_android.host.snoop.placing import SnoopedFunction
from memleak_android.host.snoop.statistics import QUANTILES, FunctionStatistics
from memleak_android.host.wire.calls import CallType

_NAMES = {CallType.ENTRY: "entry", CallType.EXIT: "exit", CallType.UNPAIRED: "unpaired"}


class JsonLines:
    """docs/use/snoop.md, "JSON lines"."""

    def __init__(self, functions: Sequence[SnoopedFunction], output: BinaryIO) -> None:
        self._functions = functions
        self._output = output
        self._encoder = msgspec.json.Encoder()

    def write(self, events: Iterable[CallEvent]) -> None:
        self._put(self._object(event) for event in events)

    def write_end(self, functions: Sequence[FunctionStatistics], lost: dict[str, int]) -> None:
        """Writes the statistics of each function and the losses by cause."""
        self._put({"type": "statistics", **statistics_object(function)} for function in functions)
        self._put([{"type": "end", "lost": lost}])

    def close(self) -> None:
        self._output.flush()

    def _put(self, objects: Iterable[dict[str, object]]) -> None:
        self._output.write(b"".join(self._encoder.encode(each) + b"\n" for each in objects))

    def _object(self, event: CallEvent) -> dict[str, object]:
        found: dict[str, object] = {
            "type": _NAMES[CallType(event.type)],
            "time_ns": event.timestamp_ns,
            "function": self._functions[event.number].name,
            "pid": event.tgid,
            "tid": event.tid,
            "call": event.call,
            "depth": event.depth,
        }
        if event.type == CallType.ENTRY:
            found["arguments"] = event.arguments
            if event.stack:
                found["stack"] = event.stack
        else:
            found["duration_ns"] = event.duration_ns
        if event.type == CallType.EXIT:
            found["return"] = event.result
        return found


def statistics_object(function: FunctionStatistics) -> dict[str, object]:
    """Times in nanoseconds. histogram: calls of 2**power up to 2**(power + 1) ns, by power."""
    numbers: dict[str, object] = asdict(function)
    del numbers["quantiles"], numbers["histogram"], numbers["has_return"]
    numbers |= {
        "function": numbers.pop("name"),
        "active": function.active,
        "mean_ns": round(function.mean_ns, 1),
    }
    numbers |= {
        f"p{share * 100:g}_ns": round(value)
        for share, value in zip(QUANTILES, function.quantiles, strict=True)
    }
    numbers["histogram"] = {str(power): count for power, count in function.histogram}
    return numbers


class ChromeTrace:
    """Complete events ("ph": "X"), written as calls end, so that a lost entry leaves no slice open.

    A cut file stays readable: the format does not require the array's last bracket.

    process_names: by process id.
    """

    def __init__(
        self, functions: Sequence[SnoopedFunction], process_names: Mapping[int, str], output: BinaryIO
    ) -> None:
        self._functions = functions
        self._output = output
        self._encoder = msgspec.json.Encoder()
        self._separator = b"[\n"
        for pid, name in process_names.items():
            self._put({"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}})

    def write(self, events: Iterable[CallEvent]) -> None:
        for event in events:
            function = self._functions[event.number]
            if event.type != CallType.ENTRY:
                self._put(self._slice(event, function))
            elif not function.has_return:
                self._put(
                    {**self._common(event, function), "ph": "i", "s": "t", "ts": event.timestamp_ns / 1e3}
                )

    def close(self) -> None:
        self._output.write(b"\n]\n" if self._separator != b"[\n" else b"[]\n")
        self._output.flush()

    def _slice(self, event: CallEvent, function: SnoopedFunction) -> dict[str, object]:
        return {
            **self._common(event, function),
            "ph": "X",
            "ts": (event.timestamp_ns - event.duration_ns) / 1e3,
            "dur": event.duration_ns / 1e3,
        }

    def _common(self, event: CallEvent, function: SnoopedFunction) -> dict[str, object]:
        values: dict[str, object] = {f"arg{i}": text for i, text in enumerate(event.arguments or ())}
        if event.type == CallType.EXIT:
            values["return"] = event.result
        if event.stack:
            values["stack"] = event.stack
        if event.type == CallType.UNPAIRED:
            values["unpaired"] = True
        return {"name": function.name, "cat": "call", "pid": event.tgid, "tid": event.tid, "args": values}

    def _put(self, entry: dict[str, object]) -> None:
        self._output.write(self._separator + self._encoder.encode(entry))
        self._separator = b",\n"
