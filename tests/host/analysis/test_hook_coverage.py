"""Report lines for modules that a PLT hook saw late, in part, or not."""

import numpy as np
import pytest

from memleak_android.host.analysis.hook_coverage import hooked_missing, hooked_modules, hooked_remarks
from memleak_android.host.heap.capture import Capture
from memleak_android.host.profile.coverage import Answer, Reason
from memleak_android.host.wire.blocks import HOOKED, Block, BlockKind, HookedFlag, Rows
from memleak_android.host.wire.payloads import Maps


def row(
    name: str, module: int, *, slots: int = 0, since_ns: int = 0, patched_ns: int = 1, **fields: int
) -> Rows:
    rows = np.zeros(1, HOOKED)
    rows["name"], rows["module"], rows["n_slots"] = name.encode(), module, slots
    rows["since_ns"], rows["patched_ns"], rows["pid"] = since_ns, patched_ns, 7
    for field, value in fields.items():
        rows[field] = value
    return rows


def captured(*rows: Rows, maps: str = "") -> Capture:
    capture = Capture()
    for one in rows:
        capture.add(Block(BlockKind.HOOKED, one.tobytes()), -1)
    capture.maps.append(Maps(5, 7, maps))
    return capture


def texts(reasons: list[Reason]) -> list[str]:
    return [reason.text for reason in reasons if reason.answer is Answer.NO]


def test_nothing_is_said_where_nothing_was_hooked() -> None:
    assert hooked_remarks(captured()) == texts(hooked_missing(captured())) == []


def test_the_last_word_on_a_module_holds() -> None:
    capture = captured(row("", 0x1000, slots=4), row("liba.so", 0x5000), row("liba.so", 0x5000, slots=3))
    assert hooked_modules(capture)["n_slots"].tolist() == [4, 3]
    (only,) = hooked_remarks(capture)
    assert only.startswith("calls were seen where a module makes them through a slot (7 slots of 2 modules);")


def test_a_late_module_reports_how_long_it_was_unseen() -> None:
    capture = captured(
        row("", 0x1000, slots=4), row("liba.so", 0x5000, slots=1, since_ns=2_000_000, patched_ns=45_000_000)
    )
    assert hooked_remarks(capture)[1:] == [
        "liba.so was loaded during the session; what its constructors allocated is missing, within 43.0 ms"
    ]


def test_allocators_that_were_not_hooked_are_named() -> None:
    capture = captured(row("liba.so", 0x5000, n_foreign=2), row("", 0x1000, flags=HookedFlag.PROGRAM))
    assert hooked_remarks(capture)[1:] == [
        "liba.so also called functions of these names that are, or may be, another allocator's: not seen",
        (
            "the program itself calls no allocator through a slot: if it has one of its own, that is not seen "
            "(--tracer inline sees it)"
        ),
    ]
    assert texts(hooked_missing(capture)) == [
        "no module calls a traced function through a slot (--tracer inline)"
    ]


@pytest.mark.parametrize("slots", [0, 1])
def test_a_program_that_calls_other_allocators_makes_the_result_incomplete(slots: int) -> None:
    """One slot of free() is no reason to believe that malloc()'s was seen."""
    program = row("", 0x1000, slots=slots, n_foreign=2, flags=HookedFlag.PROGRAM)
    assert texts(hooked_missing(captured(program, row("libc.so.6", 0x5000, slots=3)))) == [
        "the program itself calls functions of these names that were not hooked: not seen (--tracer bpf)"
    ]


def test_slots_that_could_not_be_patched_make_the_result_incomplete() -> None:
    refused = row("liba.so", 0x5000, n_refused=3, flags=HookedFlag.READ_ONLY)
    assert texts(hooked_missing(captured(row("", 0x1000, slots=4), refused))) == [
        "3 slots of liba.so could not be patched (they cannot be written to): what it allocates through them is missing"
    ]


def test_an_unannounced_library_makes_the_result_incomplete() -> None:
    maps = """\
00001000-00002000 r--p 00000000 08:01 1  /bin/program
00002000-00003000 r-xp 00001000 08:01 1  /bin/program
00005000-00006000 r--p 00000000 08:01 2  /lib/liba.so
00006000-00007000 r-xp 00001000 08:01 2  /lib/liba.so
00008000-00009000 r--p 00000000 08:01 3  /lib/libunseen.so.1
00009000-0000a000 r-xp 00001000 08:01 3  /lib/libunseen.so.1
0000b000-0000c000 r--p 00000000 08:01 4  /lib/libdata.so
0000d000-0000e000 r-xp 00000000 08:01 5  /x/libmemleak.so
"""
    capture = captured(row("", 0x1000, slots=4), row("liba.so", 0x5000, slots=3), maps=maps)
    assert texts(hooked_missing(capture)) == [
        "libunseen.so.1 loaded unnoticed: what they allocate is missing"
    ]
