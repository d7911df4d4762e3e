"""Code that the agent refuses to probe: the kernel would refuse it, or break it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.pairs.agent_lines import rule_line
from memleak_android.host.tracers.probes.allocator import HEAP, HEAP_FUNCTIONS
from memleak_android.host.wire.blocks import WIRE_VERSION, BlockKind, BlockParser, Reason
from memleak_android.host.wire.payloads import decode_error

ARM, I386, RISCV = 40, 3, 243
CLASS_32, CLASS_64 = 1, 2


def elf_header(path: Path, machine: int, elf_class: int) -> Path:
    path.write_bytes(struct.pack("<4sBBB9xHHI40x", b"\x7fELF", elf_class, 1, 1, 3, machine, 1))
    return path


def refusal(argv: list[str], probed: Path) -> tuple[int, str]:
    """Reason and text of the ERROR block of a session with one probe in this file."""
    number, rule = HEAP_FUNCTIONS[0].number, rule_line(HEAP_FUNCTIONS[0].number, 0, HEAP, HEAP.rules[0])
    probe = f"probe {number:x} 0 0 0 0 1000 {probed}"
    lines = [f"wire {WIRE_VERSION}", "arg /bin/true", rule, probe, "start", ""]
    done = subprocess.run(
        [*argv, "bpf"], input="\n".join(lines).encode(), capture_output=True, timeout=60, check=False
    )
    blocks = list(BlockParser().feed(done.stdout))
    assert [blocks[0].kind, blocks[-1].kind] == [BlockKind.HELLO, BlockKind.END], done.stderr
    return decode_error(next(block.payload for block in blocks if block.kind == BlockKind.ERROR))


def own_agent() -> list[str]:
    path = find_binary("memleakd", local_arch())
    return [str(path)]


@pytest.mark.parametrize(
    ("machine", "elf_class", "expected"),
    [
        (ARM, CLASS_32, "is 32-bit arm code, where the kernel places no uprobes (use --tracer preload)"),
        (I386, CLASS_32, "is 32-bit, which cannot be traced (use a 64-bit build of it)"),
        (RISCV, CLASS_64, "is code of another machine (ELF machine 243), which cannot be traced"),
    ],
)
def test_code_that_takes_no_probes(tmp_path: Path, machine: int, elf_class: int, expected: str) -> None:
    path = elf_header(tmp_path / "libc.so", machine, elf_class)
    assert refusal(own_agent(), path) == (Reason.TARGET_ERROR, f"{path} {expected}")


def test_an_agent_without_programs_says_so(tmp_path: Path) -> None:
    qemu = shutil.which("qemu-arm-static")
    path = Path(find_binary("memleakd", local_arch())).parents[1] / "armeabi-v7a" / "memleakd"
    if qemu is None or not path.exists():
        pytest.skip("qemu-arm-static is not installed, or there is no agent (make device ABIS=armeabi-v7a)")
    probed = subprocess.run([qemu, path, "probe"], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(probed.stdout)["bpf_programs"] is False
    way_out = "bring the agent of the kernel's own ABI, or use --tracer preload"
    reason, text = refusal([qemu, str(path)], tmp_path / "absent")
    assert reason == Reason.TRACER_ERROR
    assert text == f"this 32-bit agent carries no BPF programs ({way_out})"
