"""Statistics, tables, live lines, JSON lines and traces, from calls that are made up."""

import io
import json

import numpy as np
import pytest

from memleak_android.host.snoop.events import CallEvent, CallJoin
from memleak_android.host.snoop.formats import parse_call_format
from memleak_android.host.snoop.json_lines import ChromeTrace, JsonLines
from memleak_android.host.snoop.live_print import LivePrint
from memleak_android.host.snoop.placing import SnoopedFunction
from memleak_android.host.snoop.statistics import (
    bucket_bounds,
    by_total_time,
    histogram_lines,
    summarize,
    table_lines,
)
from memleak_android.host.wire import calls as wire
from memleak_android.host.wire.calls import Calls, CountedFunction

FUNCTIONS = (
    SnoopedFunction(0, "outer", parse_call_format("int->int"), (), True),
    SnoopedFunction(1, "noted", parse_call_format("str"), (), False),
)


UNPAIRED = (
    "left without a visible return (longjmp, an exception, the thread's end, or deeper than the kernel's 64)"
)


def bucket_of(duration_ns: int) -> int:
    """As device/bpf/snoop/calls.bpf.h has it."""
    if duration_ns < 16:
        return duration_ns
    power = duration_ns.bit_length() - 1
    return min((power - 3) * 16 + ((duration_ns >> (power - 4)) & 15), wire.BUCKETS - 1)


def counted(durations: list[int], **more: int) -> CountedFunction:
    row = np.zeros((), wire.STATISTICS)
    row["calls"] = row["returns"] = len(durations)
    row["total_ns"], row["min_ns"], row["max_ns"] = sum(durations), min(durations), max(durations)
    for name, value in more.items():
        row[name] = value
    numbers, counts = np.unique([bucket_of(one) for one in durations], return_counts=True)
    buckets = np.zeros(len(numbers), wire.BUCKET)
    buckets["bucket"], buckets["count"] = numbers, counts
    return CountedFunction(row, buckets)


def calls(*rows: tuple[int, int, int, int, tuple[int, ...]], data: bytes = b"") -> Calls:
    """(type, call, function, depth, values)."""
    found = np.zeros(len(rows), wire.CALL)
    for row, (kind, call, function, depth, values) in zip(found, rows, strict=True):
        row["type"], row["call"], row["function"], row["depth"] = kind, call, function, depth
        row["timestamp_ns"], row["tgid"], row["tid"] = 5_000_000_000, 7, 8
        row["duration_ns"] = 2_500 if kind != wire.CallType.ENTRY else 0
        row["values"][: len(values)] = values
        row["n_captures"] = bool(data and function == 1)
    return Calls(found, data)


def test_buckets_hold_what_they_say() -> None:
    for duration_ns in [*range(300), 1_000, 65_535, 65_536, 10**6 + 1, 10**9, 10**12]:
        low, high = bucket_bounds(np.array([bucket_of(duration_ns)]))
        assert low[0] <= duration_ns < high[0]


def test_quantiles_are_exact_to_a_sixteenth() -> None:
    durations = np.random.default_rng(3).lognormal(9, 1.5, 20_000).astype(int)
    found = summarize("f", counted(durations.tolist()))
    for share, value in zip((0.5, 0.9, 0.99), found.quantiles, strict=True):
        assert value == pytest.approx(np.quantile(durations, share), rel=1 / 16)
    assert found.mean_ns == durations.mean()
    assert sum(count for _, count in found.histogram) == 20_000
    assert summarize("f", counted([12_345])).quantiles == (12_345.0,) * 3


def test_table_and_histogram() -> None:
    slow = summarize("slow", counted([2_000_000] * 3, calls=5, unpaired=1, hidden=2))
    quick = summarize("quick", counted([100, 130, 900], filtered=4))
    never = summarize("never", CountedFunction(np.zeros((), wire.STATISTICS), np.zeros(0, wire.BUCKET)))
    assert table_lines(by_total_time([never, quick, slow])) == [
        "FUNCTION  CALLS  ACTIVE    TOTAL      MIN     MEAN      P50      P90      P99      MAX",
        "slow          5       1  6.00 ms  2.00 ms  2.00 ms  2.00 ms  2.00 ms  2.00 ms  2.00 ms",
        "quick         3       0  1.13 us   100 ns   377 ns   132 ns   899 ns   900 ns   900 ns",
        f"slow: 1 {UNPAIRED}",
        "slow: 2 calls were counted but not shown (--rate)",
        "quick: 4 calls did not match --filter",
        "1 of 3 functions were not called",
    ]
    assert histogram_lines(quick) == [
        "quick: calls by duration, each row up to twice its own",
        "   64 ns  1  ########################################",
        "  128 ns  1  ########################################",
        "  256 ns  0",
        "  512 ns  1  ########################################",
    ]


def joined(*rows: tuple[int, int, int, int, tuple[int, ...]], data: bytes = b"") -> list[CallEvent]:
    return list(CallJoin(FUNCTIONS).events(calls(*rows, data=data)))


ROWS = (
    (1, 10, 0, 0, (2**64 - 3,)),
    (1, 11, 1, 1, (0x99,)),
    (2, 10, 0, 0, (5,)),
    (2, 12, 0, 0, (6, 1)),
    (3, 13, 0, 2, ()),
)
TEXT = np.array([(0, 2, 0)], wire.CAPTURE).tobytes() + b"hi".ljust(8, b"\0")


def test_live_lines() -> None:
    out = io.StringIO()
    LivePrint(FUNCTIONS, out, with_entries=True).write(joined(*ROWS, data=TEXT))
    assert out.getvalue().splitlines() == [
        "5.000000 7/8 outer(-3) …",
        '5.000000 7/8   noted("hi")',
        "5.000000 7/8 outer(-3) = 5 <2.50 us>",
        "5.000000 7/8 outer(?) = tail call <2.50 us>",
        "5.000000 7/8     outer(?) left without a visible return",
    ]


def test_json_lines() -> None:
    out = io.BytesIO()
    sink = JsonLines(FUNCTIONS, out)
    sink.write(joined(*ROWS, data=TEXT))
    sink.write_end([summarize("outer", counted([1_000]))], {"events": 3})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert " ".join(one["type"] for one in lines) == "entry entry exit exit unpaired statistics end"
    assert lines[0]["arguments"] == ["-3"] and lines[2]["return"] == "5" and lines[2]["duration_ns"] == 2_500
    assert lines[5] | {"calls": 1, "p99_ns": 1_000, "active": 0} == lines[5]
    assert lines[6]["lost"] == {"events": 3}


def test_chrome_trace() -> None:
    out = io.BytesIO()
    sink = ChromeTrace(FUNCTIONS, {7: "prog"}, out)
    sink.write(joined(*ROWS, data=TEXT))
    sink.close()
    name, instant, first, second, third = json.loads(out.getvalue())
    assert name == {"ph": "M", "name": "process_name", "pid": 7, "tid": 7, "args": {"name": "prog"}}
    assert (instant["ph"], instant["name"], instant["args"]) == ("i", "noted", {"arg0": '"hi"'})
    assert (first["ph"], first["dur"], first["ts"]) == ("X", 2.5, 5_000_000 - 2.5)
    assert first["args"] == {"arg0": "-3", "return": "5"}
    assert second["args"] == {"return": "tail call"} and third["args"] == {"unpaired": True}
    empty = io.BytesIO()
    ChromeTrace(FUNCTIONS, {}, empty).close()
    assert json.loads(empty.getvalue()) == []
