"""--follow: the calls of children, from their first one to that of the last."""

import subprocess
from collections import Counter

import pytest

from tests.support.snoop_runs import snoop, snooped_program

pytestmark = pytest.mark.bpf


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
