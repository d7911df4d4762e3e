"""Inline hooks and other tracers' uprobes at the entries of the same functions, in every order: nothing is lost, no process dies."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.attached_session import contents_of, leak, loaded
from tests.support.attaching import until
from tests.support.inline_session import attach_inline, own_allocator_program
from tests.support.oracles.uprobe_counters import uprobe_counters

pytestmark = pytest.mark.bpf

FUNCTIONS = ("malloc", "calloc", "realloc", "free")


@pytest.fixture(scope="module")
def program() -> Path:
    return own_allocator_program("own_allocator_uprobed")


@pytest.fixture
def process(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    with loaded(3, program) as running:
        yield running


@pytest.mark.parametrize("comes", ["before", "within"])
@pytest.mark.parametrize("goes", ["within", "after"])
def test_they_do_no_harm(comes: str, goes: str, process: subprocess.Popen[bytes], program: Path) -> None:
    probes, counters, counted = ExitStack(), uprobe_counters(program, FUNCTIONS), {}
    before = contents_of(process.pid)
    counts = probes.enter_context(counters) if comes == "before" else None

    def meanwhile() -> None:
        leak(process)
        now = counts or probes.enter_context(counters)
        leak(process)
        counted.update(now())
        assert until(lambda: now()["free"] > 0)
        if goes == "within":
            probes.close()
        leak(process)

    with probes:
        found = attach_inline(process.pid, meanwhile)
        leak(process)
    assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 3 * 23), found
    assert counted["malloc"] >= 23
    leak(process)
    assert contents_of(process.pid) == before
    assert process.poll() is None
