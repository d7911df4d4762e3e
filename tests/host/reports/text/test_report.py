"""The text report against whole expected texts."""

import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from memleak_android.host.profile.profile import (
    FpAgreement,
    Profile,
    StopMoment,
    Target,
    ThreadStop,
    Unwinding,
)
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.text import interval, messages
from memleak_android.unwind.trace import TraceEnd
from tests.support.builders.profiles import (
    CODEC,
    DECODE,
    PARTIAL,
    SERVER,
    START,
    empty_profile,
    frame,
    profile,
    site,
)
from tests.support.goldens import assert_golden
from tests.support.written import written_text


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


text_of = partial(written_text, "text")


def interval_of(of: Profile, **options: object) -> str:
    stream = io.StringIO()
    interval.write(of, stream, ReportOptions(**options))  # type: ignore[arg-type]
    return stream.getvalue()


def test_everything_at_once() -> None:
    assert_golden(text_of(profile()), "text.txt")


def test_how_far_frame_pointers_agree() -> None:
    agreement = FpAgreement(200, 120, 30, 25, 15, 10, 0, mean_common_prefix=6.25, mean_depth=9.5)
    shown = text_of(profile(unwinding=Unwinding(5, 5, 0, {"ROOT": 5}, fp_agreement=agreement)))
    lines = [line for line in shown.splitlines() if "by cfi (" in line or "on average" in line]
    assert lines == [
        (
            "frame pointers 75.0% of 200 stacks as by cfi (120 identical, 30 all but the start, 25 cut,"
            " 15 without the allocating function's caller, 10 with gaps);"
        ),
        "               the innermost 6.2 of 9.5 frames the same on average",
    ]


def test_how_long_threads_stood_still() -> None:
    all_ns, caller_ns = (104_729, 7_919, 1_299_709, 15_485_863), (32_452_843,)
    stops = [ThreadStop(StopMoment.ATTACH, False, ns, 3, 7) for ns in all_ns]
    stops += [ThreadStop(StopMoment.DETACH, True, ns, 1, 7) for ns in caller_ns]
    (line,) = (one for one in text_of(profile(stops=tuple(stops))).splitlines() if one.startswith("stopped"))
    assert line == (
        "stopped        all threads 4 times, 0.702 ms in the median, 15.486 ms at most;"
        " the one that made our calls once, 32.453 ms in the median, 32.453 ms at most"
    )


def test_a_chain_of_frame_records_says_why_it_ends() -> None:
    walked = replace(PARTIAL, end="NO_PROGRESS", frames=(replace(PARTIAL.frames[0], method="fp"),))
    assert "the frame pointer leads no further (--unwind cfi may)" in text_of(profile(sites=(walked,)))


def test_single_allocations_and_top() -> None:
    assert_golden(text_of(profile(), show_allocs=True, top=1, sort="count"), "text_allocs_top1.txt")


def test_nothing_outstanding() -> None:
    assert_golden(text_of(empty_profile()), "text_empty.txt")


def test_sampled_app_on_a_device() -> None:
    target = Target("arm64", 321, "", "plt", "cfi", 65536, "com.example.app", "emulator-5554", 9)
    assert_golden(text_of(profile(target=target, sites=(DECODE,), notes=())), "text_device.txt")


def test_colour_changes_nothing_but_colour() -> None:
    coloured = text_of(profile(), colour=True)
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text_of(profile())


def test_combined_only_shows_no_single_allocation() -> None:
    assert "addr =" in text_of(profile(), show_allocs=True)
    assert text_of(profile(), show_allocs=True, combined_only=True) == text_of(profile())


def test_every_trace_end_has_a_reason() -> None:
    assert set(messages.ENDS) | {"ROOT"} == {end.name for end in TraceEnd}


def test_interval_in_memleaks_form() -> None:
    assert_golden(interval_of(profile(), show_allocs=True), "interval.txt")


def test_interval_top_by_count() -> None:
    sites = (site("1", 100, 1, *START), site("2", 50, 7, *START), site("3", 60, 3, *START))
    heads = re.findall(
        r"^\t(\d+ bytes.*)$", interval_of(profile(sites=sites), top=2, sort="count"), re.MULTILINE
    )
    assert heads[:2] == ["50 bytes in 7 allocations from stack", "60 bytes in 3 allocations from stack"]
    assert heads[2:] == ["207 bytes in 3 allocations unattributed"]


def test_symbols_are_asked_for_only_where_they_can_be_had() -> None:
    system = replace(frame(CODEC, ""), module="/usr/lib/libstdc++.so.6", vaddr=0x23)
    with_lines = replace(frame(SERVER, ""), vaddr=0x29)
    output = text_of(profile(sites=(site("1", 2, 1, system, with_lines),), notes=()))
    way_out = "set DEBUGINFOD_URLS=https://debuginfod.elfutils.org, or pass --symbols with its debug file"
    assert re.findall("^note: .*$", output, re.MULTILINE) == [
        f"note: no symbols for 1 of 1 frame in libstdc++.so.6 (build-id cc03); {way_out}"
    ]
    assert "next: again with --symbols" not in output


def test_a_module_without_a_build_id_has_a_way_out() -> None:
    own = replace(frame(CODEC, ""), module="/srv/own.so", build_id="")
    (note,) = re.findall(
        "^note: .*$", text_of(profile(sites=(site("1", 2, 1, own),), notes=())), re.MULTILINE
    )
    way_out = "files of symbols are found by build-id: link it with -Wl,--build-id and measure again"
    assert note == f"note: no symbols for 1 of 1 frame in own.so (build-id none); {way_out}"
