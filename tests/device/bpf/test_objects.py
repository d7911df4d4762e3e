"""The BPF object that is loaded: the one for this kernel, else the other one with a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.tracers.agent.session_options import SessionOptions
from tests.support.bpf_agent import seen_in_session, told_of_files
from tests.support.workloads import built, need, run

RING_BUFFER, PERF_EVENT_ARRAY = 27, 4  # enum bpf_map_type of linux/bpf.h
NO_RING = 0  # bytes
REMARK = "could not load the BPF object for newer kernels"


def map_types(*extra: str) -> set[int]:
    """Of the maps that the agent holds while its command runs."""
    return seen_in_session(SessionOptions(command=("/bin/sleep", "20")), extra, held)


def held(pid: int) -> set[int]:
    """Empty until the one that evidence goes through is there."""
    types = set(map(int, told_of_files(pid, "map_type")))
    return types if types & {RING_BUFFER, PERF_EVENT_ARRAY} else set()


@pytest.mark.parametrize("extra", [(), ("follow 1", "every_stack 1", "mmap 1", "events 1")], ids=len)
def test_the_object_for_this_kernel_is_in_use(extra: tuple[str, ...]) -> None:
    """A verifier that no longer likes it would cost exact keys and time, and nothing would fail."""
    need("bpf")
    types = map_types(*extra)
    assert RING_BUFFER in types
    assert PERF_EVENT_ARRAY not in types


def test_the_fallback_object_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("bpf")
    agent = find_binary("memleakd", local_arch())
    wrapper = tmp_path / "memleakd"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = bpf ] || exec {agent} "$@"\nsed -u "s/^start$/ring_bytes {NO_RING}\\nstart/" | {agent} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("MEMLEAKD", str(wrapper))
    result = run("bpf", tmp_path, "--", built("plain_leak"), "23", "1009", codes=[0, 6])
    assert REMARK in result.out + result.err
    assert result.amounts() == (23 * 1009, 23)
