"""Memory use of a process: smaps of Linux and Android, the table, and malformed recordings."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.analysis.memory_use import driver_bytes, mappings_of, memory_parts, read_memory
from memleak_android.host.profile.profile import MemoryUse
from memleak_android.host.reports.text.memory import memory_line, memory_lines, untouched_notes
from memleak_android.host.wire.session import SessionFindings
from tests.support.builders.profiles import profile
from tests.support.workloads import both_tracers, built, run
from tests.support.written import read_back


def mapping(name: str, rss_kb: int, pss_kb: int, addresses: str = "7f00-7f10") -> str:
    head = f"{addresses} rw-p 00000000 08:01 131090".ljust(73) + name
    return f"{head}\nSize:  999 kB\nRss:  {rss_kb} kB\nPss:  {pss_kb} kB\nPss_Dirty:  77 kB\nVmFlags: rd wr\n"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("[heap]", "allocator"),
        ("[anon:libc_malloc]", "allocator"),
        ("[anon:scudo:primary]", "allocator"),
        ("[anon:dalvik-main space (region space)]", "java_heap"),
        ("/memfd:jit-cache (deleted)", "java_heap"),
        ("[anon: glibc: malloc arena]", "allocator"),
        ("[anon: glibc: pthread stack: 4711]", "stacks"),
        ("[stack]", "stacks"),
        ("[anon:stack_and_tls:1234]", "stacks"),
        ("/dev/kgsl-3d0", "graphics"),
        ("/dmabuf:system", "graphics"),
        ("/memfd:x (deleted)", "shared"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "files"),
        ("/data/Rss: 5 kB", "files"),
        ("", "anonymous"),
        ("[anon:.bss]", "anonymous"),
        ("[vdso]", "other"),
    ],
)
def test_part_of_a_mapping(name: str, part: str) -> None:
    assert memory_parts(mappings_of(mapping(name, 11, 7))) == {part: (11 * 1024, 7 * 1024)}


def test_sums_and_hostile_lines() -> None:
    hostile = "Rss: 9" * 9 + "\nRss: x kB\nRss: -5 kB\n\x1b\n"
    text = mapping("[heap]", 3, 3) + mapping("[heap]", 5, 2) + hostile
    assert memory_parts(mappings_of(text)) == {"allocator": (8 * 1024, 5 * 1024)}
    assert memory_parts(mappings_of("Rss:  5 kB\n")) == {}


def test_nameless_mappings_that_blocks_lie_in_are_the_allocators() -> None:
    spans = ((3, "1000-2000"), (5, "2000-3000"), (7, "5000-6000"))
    text = "".join(mapping("", kb, kb, span) for kb, span in spans) + mapping("/srv/x", 11, 11, "7000-8000")

    def resident(*addresses: int) -> dict[str, int]:
        parts = memory_parts(mappings_of(text), np.array(addresses, np.uint64))
        return {name: pair[0] >> 10 for name, pair in parts.items()}

    assert resident() == {"anonymous": 15, "files": 11}
    assert resident(0x1FFF, 0x5000) == {"allocator": 10, "anonymous": 5, "files": 11}
    assert resident(0x2FFF, 0x2000, 0xFFF, 0x6000) == {"allocator": 5, "anonymous": 10, "files": 11}
    assert resident(0x7000, 2**64 - 1) == {"anonymous": 15, "files": 11}  # a block within a file is no heap


def test_sums_are_those_of_the_kernels_rollup() -> None:
    """Of ourselves, who go on living between the two readings."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    (rss_kb,) = re.findall(r"^Rss: +(\d+) kB", rollup, re.MULTILINE)
    rss = sum(pair[0] for pair in memory_parts(mappings_of(Path("/proc/self/smaps").read_text())).values())
    assert rss == pytest.approx(int(rss_kb) * 1024, rel=0.05)


MEMINFO = """Applications Memory Usage (in Kilobytes):
Uptime: 5178 Realtime: 5178

** MEMINFO in pid 4711 [com.example.leaky] **
                   Pss  Private  Private  SwapPss      Rss     Heap
                 Total    Dirty    Clean    Dirty    Total     Size
                ------   ------   ------   ------   ------   ------
  Native Heap     7003     6996        0        0     9004    11009
      Gfx dev     1013     1012        0        0     1013
   EGL mtrack    10001    10001        0        0    10001
    GL mtrack      307      307        0        0      307
 Other mtrack       11       11
        TOTAL    18335    18316        0        0    20325

 App Summary
           Graphics:    11321                          11321
"""


def test_what_drivers_count_outside_of_the_mappings() -> None:
    """Rows of the memtrack HAL alone: the others are in smaps."""
    assert driver_bytes(MEMINFO) == (10_001 + 307 + 11) * 1024
    assert driver_bytes("No process found for: 4711\n") == 0
    hostile = "GL mtrack\nGL mtrack x\nGL mtrack -5\nGL mtrack " + "9" * 5000 + "\n\x1b[2J GL mtrack 7\n"
    assert driver_bytes(hostile) == 0


GOOD = {"pid": 5, "timestamp_ns": 70, "tracked": 1009, "parts": {"files": [3, 2], "allocator": [2003, 2003]}}
USE = MemoryUse(5, 60, 1009, (("allocator", 2003, 2003), ("files", 3, 2)))


def read(session: dict[str, object], begin_ns: int) -> tuple[MemoryUse, ...]:
    return read_memory(SessionFindings.decode(session).memory, begin_ns)


def test_session_and_back() -> None:
    assert read({"memory": json.loads(json.dumps(GOOD))}, 10) == (USE,)
    others = [GOOD | {"pid": 6}, 5, GOOD | {"tracked": -1}, GOOD | {"pid": 7}]
    assert [one.pid for one in read({"memory": GOOD, "memory_of_others": others}, 10)] == [5, 6, 7]
    assert len(read({"memory": GOOD, "memory_of_others": [GOOD] * 1000}, 10)) == 16


WRONG = ({"pid": "x"}, {"tracked": -1}, {"tracked": 2**70}, {"parts": [1]})


@pytest.mark.parametrize("value", [None, 5, {}, *(GOOD | wrong for wrong in WRONG)])
def test_nonsense_is_nothing(value: object) -> None:
    assert read({"memory": value, "memory_of_others": value}, 0) == ()


def test_unknown_and_malformed_parts_are_passed_over() -> None:
    parts = {"files": [1], "stacks": ["x", 1], "\x1b": [1, 1], "other": [7, 5]}
    (use,) = read({"memory": GOOD | {"parts": parts}}, 0)
    assert use.parts == (("other", 7, 5),)


def test_what_the_allocator_has_beside_the_blocks() -> None:
    (use,) = read({"memory": GOOD | {"by_block": True}}, 10)
    assert use == replace(USE, caches=2003 - 1009)
    assert memory_line(USE) == "of 2,006 resident bytes: 1,009 tracked, 3 files"
    beside = "994 the allocator's beside them"
    assert memory_line(use) == f"of 2,006 resident bytes: 1,009 tracked, {beside}, 3 files"


@pytest.mark.parametrize("by_block", [False, True])
def test_more_is_held_than_resident(by_block: bool) -> None:
    (use,) = read({"memory": GOOD | {"tracked": 2503, "by_block": by_block}}, 10)
    assert (use.untouched, use.caches) == (500, 0 if by_block else None)
    assert memory_line(use) == "of 2,006 resident bytes: 2,503 tracked, 500 of those never touched, 3 files"
    assert [line.split()[0] for line in memory_lines([use])][-2:] == ["2,503", "500"]
    assert untouched_notes([USE, use]) == []
    assert len(untouched_notes([replace(use, untouched=501)])) == 1


@pytest.mark.parametrize("use", [USE, replace(USE, caches=994)], ids=["earlier recordings", "by block"])
def test_table_and_json(use: MemoryUse) -> None:
    other = replace(use, pid=6)
    lines = list(memory_lines([use]))
    assert list(memory_lines([use, other])) == [*lines, f"memory of pid 6 at 0:00: {memory_line(other)}"]
    assert lines[0].startswith("memory of pid 5 at 0:00")
    assert [line.split()[0] for line in lines[1:]] == ["2,003", "3", "2,006", "1,009", "994"]
    assert list(memory_lines(())) == []
    assert read_back(profile(memory=(use, other))).memory == (use, other)


@pytest.mark.proof
@both_tracers
def test_beside_mallinfo(tracer: str, tmp_path: Path) -> None:
    """Three arenas' worth of memory, half of it free: as the program's own C library says once it has come to rest."""
    done = run(tracer, tmp_path, "--", built("keeps_free"))
    system, free, used = map(int, re.findall(r"^(\d+) (\d+) (\d+)$", done.out, re.MULTILINE)[0])
    memory = done.report["memory"]
    assert memory["tracked"] == pytest.approx(used, rel=0.05)  # and headers
    assert memory["caches"] == pytest.approx(system - memory["tracked"], rel=0.05)
    # what each arena has at its top may never have been touched
    assert memory["caches"] >= free - (512 << 10)
    assert {part["name"]: part["resident"] for part in memory["parts"]}["anonymous"] < 2 << 20


@pytest.mark.parametrize(
    "tracer", [pytest.param("bpf", marks=[pytest.mark.proof, pytest.mark.changes_all_code]), "preload"]
)
def test_every_process_that_holds_something(tracer: str, tmp_path: Path) -> None:
    """Three children that hold 1, 2 and 3 MiB and their parent with 5, all of it written to."""
    program = built("held_by_each")
    result = run(tracer, tmp_path, "--", program, options=["--follow", "--duration", "4s"])
    uses = [result.report["memory"], *result.report["memory_of_others"]]
    assert [use["tracked"] >> 20 for use in uses] == [5, 3, 2, 1]
    for use in uses:
        allocators = {part["name"]: part["resident"] for part in use["parts"]}["allocator"]
        assert use["tracked"] <= allocators <= use["tracked"] + (1 << 20)
