"""Calls in Chrome's trace event format, which Perfetto reads too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import msgspec

from memleak_android.host.snoop.events import CallEvent
from memleak_android.host.snoop.placing import SnoopedFunction
from memleak_android.host.wire.calls import CallType


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
