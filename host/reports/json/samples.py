"""Samples as JSON, schema memleak-android/unwind-samples/1: one object, a sample a line."""

from typing import Any, TextIO

import msgspec

from memleak_android.host.perf_data.sampled_stacks import NOT_CAPTURED, CodeLocation, SampledStacks
from memleak_android.unwind.trace import Method, TraceEnd

SCHEMA = "memleak-android/unwind-samples/1"
_METHODS = [method.name.lower() for method in Method]


class SamplesJson:
    """Frames are as in memleak-android/unwind/1; `end` is null where nothing but the kernel's chain was captured."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encode = msgspec.json.Encoder().encode
        self._locations: list[dict[str, Any]] = []
        self._separator = "\n"
        stream.write(f'{{"schema": "{SCHEMA}", "samples": [')

    def write(self, stacks: SampledStacks) -> None:
        self._locations += map(_location, stacks.locations[len(self._locations) :])
        for i in range(len(stacks)):
            self._stream.write(self._separator + self._encode(self._sample(stacks, i)).decode())
            self._separator = ",\n"

    def close(self) -> None:
        self._stream.write("\n]}\n")

    def _sample(self, stacks: SampledStacks, i: int) -> dict[str, Any]:
        begin, end = int(stacks.offsets[i]), int(stacks.offsets[i + 1])
        columns = (stacks.location, stacks.lookup, stacks.sp, stacks.method)
        frames = zip(*(column[begin:end].tolist() for column in columns), strict=True)
        return {
            "comm": stacks.comm[i],
            "pid": int(stacks.pid[i]),
            "tid": int(stacks.tid[i]),
            "time_ns": int(stacks.time_ns[i]),
            "event": stacks.event[i],
            "period": int(stacks.period[i]),
            "arch": stacks.arch[i] or None,
            "end": None if stacks.end[i] == NOT_CAPTURED else TraceEnd(stacks.end[i]).name,
            "frames": [
                {
                    "index": index,
                    "pc": hex(pc),
                    "sp": hex(sp) if sp else None,
                    "method": _METHODS[method],
                    **self._locations[location],
                }
                for index, (location, pc, sp, method) in enumerate(frames)
            ],
        }


def _location(location: CodeLocation) -> dict[str, Any]:
    last = location.functions[-1]
    return {
        "rel_pc": hex(location.vaddr),
        "function": last.function or None,
        "function_offset": last.offset if last.function else None,
        "inlined": [function.function for function in location.functions[:-1]],
        "map_name": location.module or "<unknown>",
        "build_id": location.build_id or None,
    }
