"""The kernel's memory on kernel 6.1 of arm64: the agent alone, whose programs that kernel must take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.wire.blocks import BlockKind, Function, Lost, read_blocks
from memleak_android.host.wire.payloads import decode_evidence
from tests.emulator.machine import Machine

pytestmark = [pytest.mark.emulator, pytest.mark.proof]  # a minute each

FOLDER = "/data/local/tmp"
RESTRICT = "/proc/sys/kernel/kptr_restrict"
LINES = r"wire 2\nwhole_machine 1\nkernel_groups 7\nmax_live 100000\nwithout_btf {}\nstart\n"


@pytest.mark.parametrize(("without_btf", "restrict"), [(0, 2), (1, 1)])
def test_events_are_counted_with_both_parts_of_stacks(
    machine: Machine, without_btf: int, restrict: int, tmp_path: Path
) -> None:
    """restrict: kernel.kptr_restrict, 2 on phones: then the kernel's functions have no names, which is said."""
    agent, block_file = f"{FOLDER}/kernel-memleakd", f"{FOLDER}/kernel-blocks"
    assert machine.adb("push", find_binary("memleakd", "arm64"), agent).returncode == 0
    session = f"(printf '{LINES.format(without_btf)}'; sleep 30; echo stop; sleep 15) | {agent} kernel >{block_file}"
    work = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 2; cat /proc/self/maps /proc/modules; done"
    code, _ = machine.root_shell(
        f"echo {restrict} >{RESTRICT}; chmod 755 {agent}; ({work}) >/dev/null & {session}; e=$?; chmod 644 {block_file}; exit $e",
        timeout_s=200,
    )
    assert machine.adb("pull", block_file, tmp_path / "blocks").returncode == 0
    machine.root_shell(f"echo 2 >{RESTRICT}; rm -f {agent} {block_file}")
    capture = Capture()
    with (tmp_path / "blocks").open("rb") as stream:
        blocks = list(read_blocks(stream))
    for block in blocks:
        capture.add(block, 0)
    assert (code, capture.errors) == (0, []) and not capture.malformed
    assert capture.status is not None and capture.whole is not None
    assert int(capture.status["alloc_objects"]) > 1000 and int(capture.status["free_objects"]) > 1000
    assert int(capture.status["lost"][Lost.TABLE_FULL]) == 0
    functions = set(capture.whole.live["function"].tolist())
    assert {Function.KMALLOC, Function.KMEM_CACHE_ALLOC, Function.MM_PAGE_ALLOC} <= functions
    names = "".join(capture.kernel_symbols)
    assert ("have no names" in "".join(capture.remarks)) == (restrict == 2)
    assert ("el0t_64_sync_handler" in names) == (restrict == 1)
    assert " bpf_" not in names
    evidence = [decode_evidence(block.payload).rows for block in blocks if block.kind == BlockKind.EVIDENCE]
    assert 34 in set(np.concatenate(evidence)["n_registers"].tolist())  # of user code: struct user_pt_regs
