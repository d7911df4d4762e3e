"""Calls of real programs: every shape that is hard to pair, counted against what the program does."""

import fcntl
import json
import signal
import subprocess
import termios
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.support.program_server import run_program, start_program
from tests.support.running_program import wait_until_asleep
from tests.support.snoop_runs import SOURCES, SnoopRun, snoop, snooped_program
from tests.support.workloads import build, built, need

pytestmark = pytest.mark.bpf

FUNCTIONS = ("recurse", "jump_out", "tail_from", "tail_to", "show", "name_of", "only_here", "stay")
FORMATS = ("show=str,buf4,fd,i32->int", "name_of=int->str", "int->int")


@pytest.fixture(scope="module")
def shapes() -> SnoopRun:
    options = [word for name in FUNCTIONS for word in ("-f", name)]
    options += [word for text in FORMATS for word in ("--arguments", text)]
    return snoop(*options, command=[snooped_program("shapes.c")])


def test_counts_are_the_programs_own(shapes: SnoopRun) -> None:
    assert shapes.numbers("recurse") == (7 * 60 + 3 + 1, 7 * 60 + 3 + 1, 0)
    assert shapes.numbers("tail_to") == (11 + 3 * 1000, 11 + 3 * 1000, 0)
    assert shapes.numbers("tail_from") == (11, 11, 0)
    assert shapes.numbers("stay") == (9, 9, 0)
    assert shapes.lost == {}


def test_longjmp_leaves_calls_unpaired_and_says_so(shapes: SnoopRun) -> None:
    """They are over as soon as the next call begins, and do not pile up until something returns."""
    assert shapes.numbers("jump_out") == (50 * 4 + 1, 0, 50 * 4 + 1)
    assert len(shapes.of("jump_out", "unpaired")) == 201
    assert {one["depth"] for one in shapes.of("jump_out", "entry")} == {0, 1, 2, 3}
    assert not shapes.of("jump_out", "exit")


def test_recursion_of_60_nests(shapes: SnoopRun) -> None:
    exits = [one for one in shapes.of("recurse", "exit") if one["return"] == "60"]
    assert [one["depth"] for one in exits] == [0] * 7
    deepest = [one for one in shapes.of("recurse", "exit") if one["depth"] == 59]
    assert [one["return"] for one in deepest] == ["1"] * 7
    for one in exits:  # an outer call takes longer than what it calls
        inner = [x for x in shapes.of("recurse", "exit") if x["depth"] == 1 and x["tid"] == one["tid"]]
        assert any(x["duration_ns"] < one["duration_ns"] for x in inner)


def test_every_entry_has_one_end(shapes: SnoopRun) -> None:
    ends: dict[int, Counter[str]] = defaultdict(Counter)
    for one in shapes.events:
        ends[one["call"]]["entry" if one["type"] == "entry" else "end"] += 1
    assert all(count == Counter(entry=1, end=1) for count in ends.values())
    by_thread: dict[int, list[int]] = defaultdict(list)
    for one in shapes.events:
        by_thread[one["tid"]].append(one["time_ns"])
    assert all(times == sorted(times) for times in by_thread.values())


def test_no_output_of_the_command_is_among_the_lines() -> None:
    need("bpf")
    words = ["snoop", "--json", "-", "-f", "libc.so.6:malloc", "--", "sh", "-c", "echo its own words"]
    done = run_program(words, timeout_s=120)
    assert {json.loads(line)["type"] for line in done.stdout.splitlines()} >= {"entry", "end"}
    assert "\nits own words\n" in done.stderr


def test_values_are_shown_in_their_format(shapes: SnoopRun) -> None:
    first, second = shapes.of("show", "entry")
    assert first["arguments"] == ['"a \\"quoted\\" text"', '"\\x01\\x02\\x03\\x04"', "3</dev/null>", "-5"]
    assert second["arguments"] == ["0x8", "0", "12345", "1"]  # what cannot be read is shown as it is
    assert [one["return"] for one in shapes.of("show", "exit")] == ["-2", "1"]
    assert [one["return"] for one in shapes.of("name_of", "exit")] == ['"none"']
    assert [one["arguments"] for one in shapes.of("only_here", "entry")] == [["21"]]


def test_latency_is_the_programs_own_clock_and_the_probe(shapes: SnoopRun) -> None:
    own = [int(line) for line in shapes.program_output.split()[:9]]
    excess = sorted(one["duration_ns"] - ns for one, ns in zip(shapes.of("stay", "exit"), own, strict=True))
    assert excess[0] >= 0
    assert excess[4] < 10_000


def test_filters_rate_and_threads() -> None:
    run = snoop(
        "-f", "tail_to", "-f", "recurse", "--filter", "tail_to:arg0>=990", "--filter", "recurse:arg0==59",
        "--rate", 4, command=[snooped_program("shapes.c")],
    )  # fmt: skip
    counted = run.statistics["tail_to"]
    assert (counted["calls"], counted["filtered"]) == (3 * 10, 11 + 3 * 990)
    assert counted["hidden"] == 30 - len(run.of("tail_to", "entry"))
    assert 4 <= len(run.of("tail_to", "entry")) <= 12
    assert run.numbers("recurse") == (7, 7, 0)
    assert "did not match --filter" in run.program_output


@pytest.mark.parametrize(
    ("words", "filters"),
    [
        ({}, {"of_char:arg0<0": 6, "of_short:arg0>0": 5, "of_int:arg0<0": 6, "of_long:arg0<=-3": 6, "of_size:arg0>4096": 11}),
        ({}, {"of_char:arg0==-1": 1, "of_short:arg0<-4": 2, "of_int:arg0>0": 5, "of_long:arg0>=0": 6, "of_unsigned:arg0>9": 6}),
        ({"of_int": "i32", "of_short": "i16"}, {"of_int:arg0>-2": 7, "of_short:arg0<3": 9, "of_long:arg0>0": 5}),
        (
            {"of_unsigned": "u32", "of_size": "uint", "of_long": "int", "of_char": "i8"},
            {"of_unsigned:arg0>0": 11, "of_size:arg0>0": 11, "of_long:arg0<1": 7, "of_char:arg0!=0xff": 11},
        ),
    ],
)  # fmt: skip
def test_filters_know_a_number_s_width_and_sign(words: dict[str, str], filters: dict[str, int]) -> None:
    options = [word for one in filters for word in ("-f", one.partition(":")[0], "--filter", one)]
    options += [word for name, format_ in words.items() for word in ("--arguments", f"{name}={format_}")]
    run = snoop(*options, command=[snooped_program("integers.c")])
    found = {one: run.statistics[one.partition(":")[0]]["calls"] for one in filters}
    assert found == filters


@pytest.mark.parametrize("returns", ["auto", pytest.param("instructions", marks=pytest.mark.proof)])
def test_exceptions_arrive(returns: str) -> None:
    run = snoop(
        "-f", "thrower", "-f", "catcher", "--returns", returns, command=[snooped_program("throws.cc")]
    )
    assert run.program_output.splitlines()[0] == "-30"
    assert run.numbers("thrower(int)") == (40, 0, 40)
    assert run.numbers("catcher(int)") == (10, 10, 0)


def left_program() -> list[Path]:
    """A C program without any C++ library at its start, and the plugin that it loads."""
    plugin = built(SOURCES / "left_plugin.cc", "-shared", "-fPIC")
    return [built(SOURCES / "left.c", "-foptimize-sibling-calls", "-fexceptions", "-ldl"), plugin]


THROWS_OR_ALLOCATES = """
#include <stdexcept>
#include <stdlib.h>
#include <stdio.h>
__attribute__((noinline)) void *take(size_t n) { if (n > 1000) throw std::runtime_error("no"); return malloc(n); }
__attribute__((noinline)) void give(void *p) { free(p); }
int main(void) {
	int caught = 0;
	for (int i = 0; i < 5; i++) { try { give(take(i * 400)); } catch (const std::exception &) { caught++; } }
	printf("caught %d\\n", caught);
}
"""


def test_a_pair_that_jumps_to_malloc_or_throws_in_its_cold_part(tmp_path: Path) -> None:
    """malloc() is left by no exception, but what else the function calls is."""
    source, pairs = tmp_path / "takes.cc", tmp_path / "pairs.toml"
    source.write_text(THROWS_OR_ALLOCATES)
    program = build(source, tmp_path, "-O2", "-foptimize-sibling-calls", compiler="g++", output="takes")
    pairs.write_text('[x]\nacquire = {function = "take*"}\nrelease = {function = "give*"}\n')
    refused = run_program(["--tracer", "bpf", "--pairs", pairs, "--", program])
    assert refused.returncode == 4 and "take(unsigned long): its return cannot be probed" in refused.stderr


def test_what_a_cancelled_thread_or_a_late_plugin_leaves(tmp_path: Path) -> None:
    """By return probes, the thread's cleanup did not run, and the plugin's exception ended the program."""
    run = snoop("-f", "waits", "-f", "passes", command=left_program())
    assert run.program_output.splitlines()[0] == "cleaned 1, caught 3"
    assert run.numbers("waits") == (1, 0, 1)
    assert run.numbers("passes") == (4, 4, 0), "it jumps on, so that its calls end before"
    pairs = tmp_path / "pairs.toml"
    pairs.write_text('[x]\nacquire = {function = "passes"}\nrelease = {function = "free"}\n')
    refused = run_program(["--tracer", "bpf", "--pairs", pairs, "--", *left_program()])
    assert refused.returncode == 4 and "passes: its return cannot be probed" in refused.stderr


@pytest.mark.proof
@pytest.mark.parametrize("way", [["--without-multi"], ["--without-atomics"], ["--returns", "instructions"]])
def test_other_ways_count_the_same(way: list[str]) -> None:
    run = snoop("-f", "tail_*", "-f", "recurse", *way, command=[snooped_program("shapes.c")])
    assert run.numbers("recurse") == (424, 424, 0)
    assert run.numbers("tail_to") == (3011, 3011, 0)
    assert run.numbers("tail_from") == (11, 11, 0)
    assert run.lost == {}


@pytest.mark.proof
def test_deeper_than_the_kernel_sees_is_said() -> None:
    run = snoop("-f", "recurse", "--returns", "trampoline", command=[snooped_program("shapes.c"), 99])
    calls, returns, unpaired = run.numbers("recurse")
    assert calls == 423 + 100
    assert (returns, unpaired) == (423 + 64, 36)
    assert "deeper than the kernel's 64" in run.program_output


@pytest.mark.proof
def test_without_returns_only_entries() -> None:
    run = snoop("-f", "tail_from", "--returns", "none", command=[snooped_program("shapes.c")])
    assert run.numbers("tail_from") == (11, 0, 0)
    assert {one["type"] for one in run.events} == {"entry"}


@pytest.mark.parametrize(
    "way", [[], pytest.param(["--without-cookies", "--without-atomics"], marks=pytest.mark.proof)]
)
def test_a_process_that_runs(way: list[str], tmp_path: Path) -> None:
    need("bpf")
    events = tmp_path / "events.jsonl"
    with subprocess.Popen([snooped_program("waits.c")], stdin=subprocess.PIPE) as target:
        words = ["snoop", "--pid", target.pid, "-f", "called", "--json", events, *way]
        with start_program(words, stderr=subprocess.PIPE, text=True) as tool:
            assert "1 of 1 functions probed" in tool.stderr.readline()
            target.stdin.write(b"x" * 500)
            target.stdin.close()
            assert tool.wait(60) == 0
    (counted,) = (
        one for line in events.read_text().splitlines() if (one := json.loads(line))["type"] == "statistics"
    )
    assert (counted["calls"], counted["returns"], counted["unpaired"]) == (500, 500, 0)


def test_ctrl_c_gives_the_statistics() -> None:
    need("bpf")
    with subprocess.Popen([snooped_program("waits.c")], stdin=subprocess.PIPE) as target:
        words = ["snoop", "--pid", target.pid, "-f", "called", "--statistics", "--histogram"]
        with start_program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
            tool.stderr.readline()
            target.stdin.write(b"x" * 500)
            target.stdin.flush()
            while fcntl.ioctl(target.stdin, termios.FIONREAD, bytes(4)) != bytes(4):
                time.sleep(0.01)
            wait_until_asleep(target.pid)  # it has called for the last byte too
            tool.send_signal(signal.SIGINT)
            out, _ = tool.communicate(timeout=60)
        target.stdin.close()
    assert tool.returncode == 0
    assert out.splitlines()[1].split()[:3] == ["called", "500", "0"]
    assert "called: calls by duration" in out


def test_without_it_only_the_command_is_looked_at() -> None:
    run = snoop("-f", "step", command=[snooped_program("generations.c")])
    assert run.numbers("step") == (5, 5, 0)


@pytest.mark.parametrize("way", [[], ["--without-multi"], ["--without-atomics"]], ids="".join)
def test_children_are_followed_to_the_last(way: list[str]) -> None:
    """Beside a process of the same program that is none of them, into which the probes go as well."""
    program = snooped_program("generations.c")
    with subprocess.Popen(["sh", "-c", f"while :; do {program} >/dev/null; done"]) as stranger:
        try:
            run = snoop("-f", "step", "--follow", *way, command=[program])
        finally:
            stranger.kill()
    assert run.numbers("step") == (36, 36, 0) and run.lost == {}
    by_process = Counter(one["pid"] for one in run.of("step", "exit"))
    first, last = (int(line) for line in run.program_output.split()[:2])
    assert sorted(by_process.values()) == [5, 13, 18]  # the child is one process before and after exec
    assert (by_process[first], by_process[last]) == (5, 13)


def test_a_kernel_without_cookies_is_reported() -> None:
    run = snoop(
        "-f", "step", "--follow", "--without-cookies", command=[snooped_program("generations.c")], codes=[5]
    )
    assert run.err.endswith(
        "memleak-android: error: --follow needs cookies of probes, Linux 5.15; leave --follow out\n"
    )


# Stacks of calls, through frames whose return addresses the kernel has exchanged.


_MAIN = ("main", "__libc_start_call_main")


@pytest.fixture(scope="module", params=["trampoline", pytest.param("instructions", marks=pytest.mark.proof)])
def run(request: pytest.FixtureRequest) -> SnoopRun:
    return snoop(
        "-f", "recurse", "-f", "tail_*", "--filter", "recurse:arg0<=1", "--filter", "tail_to:arg0<=11",
        "--stacks", "--returns", request.param, command=[snooped_program("shapes.c")],
    )  # fmt: skip


def names(stack: list[str]) -> tuple[str, ...]:
    return tuple(frame.partition("+")[0].partition(" ")[0] for frame in stack)


def test_60_frames_of_return_probes_are_passed(run: SnoopRun) -> None:
    deep = [names(one["stack"]) for one in run.of("recurse", "entry") if one["depth"] == 59]
    assert len(deep) == 7
    for stack in deep:
        assert stack[:62] == ("recurse",) * 60 + _MAIN
        assert stack[-1] == "_start"


def test_a_tail_call_has_its_callers_caller(run: SnoopRun) -> None:
    stacks = [names(one["stack"]) for one in run.of("tail_to", "entry") if one["depth"] or "main" in str(one)]
    from_main = [stack for stack in stacks if "main" in stack]
    assert len(from_main) == 11
    assert {stack[:3] for stack in from_main} == {("tail_to", *_MAIN)}


def test_stacks_of_threads_end_where_threads_begin(run: SnoopRun) -> None:
    in_threads = [
        names(one["stack"]) for one in run.of("tail_to", "entry") if "in_thread" in str(one["stack"])
    ]
    assert len(in_threads) == 3 * 12
    assert {stack[:3] for stack in in_threads} == {("tail_to", "in_thread", "start_thread")}
    assert all(not stack[-1].startswith("[") for stack in in_threads)
