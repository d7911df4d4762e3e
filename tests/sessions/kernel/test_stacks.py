"""Names of kernel addresses, and stacks of two parts, without a kernel to ask."""

from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.stacks.kernel_stacks import (
    KernelImage,
    KernelStacks,
    module_path,
    read_functions,
    symbol_file,
)
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.host.stacks.samples import Samples
from memleak_android.host.symbols.symbolizer import Symbolizer
from memleak_android.host.wire.blocks import EVIDENCE, FRAME_ROW, NO_MODULE
from memleak_android.unwind.trace import Method, TraceBatch, TraceEnd
from tests.support.command_line import CommandLine

BASE = 0xFFFFFFFF81000000
TEXT = (
    f"{BASE + 0x100:x} {BASE + 0x180:x} {BASE:x} kernel vfs_write\n"
    f"{BASE + 0x180:x} {BASE + 0x200:x} {BASE:x} kernel ksys_write\n"
    "ffffffffc0001000 ffffffffc0001040 ffffffffc0000000 ext4 ext4_write_begin\n"
)


def test_functions_are_read_and_nonsense_is_passed_over() -> None:
    hostile = "zz 1 2 kernel f\n1 2\n5 4 0 kernel backwards\n3 8 4 kernel below_its_base\n\n"
    assert [one.name for one in read_functions([TEXT, hostile, TEXT])] == [
        "vfs_write",
        "ksys_write",
        "ext4_write_begin",
    ]


def test_names_and_offsets_come_by_the_symbolizer() -> None:
    image = KernelImage([TEXT])
    assert image.modules == ["ext4", "kernel"]
    found = Symbolizer().resolve(image.file("kernel"), np.array([0x13F, 0x180, 0x4000], np.uint64))
    assert [(one[0].function, one[0].offset) for one in found] == [
        ("vfs_write", 0x3F),
        ("ksys_write", 0),
        ("", 0),
    ]
    assert symbol_file([])[:4] == b"\x7fELF"


def test_a_return_address_behind_a_function_is_its_own() -> None:
    """A call that does not return is the last instruction: the address behind it is the next function's first."""
    addresses = np.array([BASE + 0x180, BASE + 0x181, BASE + 0x900, 1], np.uint64)
    modules, vaddrs = KernelImage([TEXT]).locate(addresses, {"kernel": 7, "ext4": 8})
    assert modules.tolist() == [7, 7, NO_MODULE, NO_MODULE]
    assert vaddrs.tolist() == [0x180, 0x181, BASE + 0x900, 1]


class _Chains:
    def __init__(self, counts: list[int], addresses: list[int]) -> None:
        self.counts = np.array(counts, np.int64)
        self.addresses = np.array(addresses, np.uint64)


def test_the_users_frames_follow_where_there_are_any() -> None:
    rows = np.zeros(2, EVIDENCE)
    rows["n_registers"] = [21, 0]  # the second one is of the kernel alone
    user = np.zeros(3, FRAME_ROW)
    user["address"] = [0x1000, 0x2000, 0xBAD]
    traces = TraceBatch(
        np.array([0, 2, 3]),
        user["address"],
        user["sp"],
        np.zeros(3, bool),
        np.zeros(3, np.uint8),
        np.array([TraceEnd.STACK_TRUNCATED, TraceEnd.NO_MAPPING], np.uint8),
    )
    chains = _Chains([1, 2], [BASE + 0x110, BASE + 0x120, BASE + 0x190])
    files = ModuleFiles(LocalFiles(is_running=False))
    samples = Samples(np.arange(2), rows, None, chains, None)  # type: ignore[arg-type]
    joined, frames = KernelStacks([TEXT], files).join(samples, traces, user)
    assert joined.offsets.tolist() == [0, 3, 5]
    assert frames["address"].tolist() == [BASE + 0x110, 0x1000, 0x2000, BASE + 0x120, BASE + 0x190]
    assert joined.end.tolist() == [TraceEnd.STACK_TRUNCATED, TraceEnd.ROOT]
    assert joined.method.tolist() == [Method.KERNEL, 0, 0, Method.KERNEL, Method.KERNEL]
    assert files.files[int(frames["module"][0])].path == module_path("kernel")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "--kernel --follow -- ls",
            "--kernel with --follow; drop it, a command's children are counted with it",
        ),
        (
            "--kernel --serial x -- ls",
            "--kernel and a command on a device; start it there and name it by --pid",
        ),
        ("--percpu --tracer preload", "--percpu and --tracer exclude each other; use one of them"),
        ("--kernel --pairs fd", "--kernel and --pairs exclude each other; use one of them"),
        ("--kernel --unwind fp", "--kernel and --unwind exclude each other; use one of them"),
        ("--kernel --package x --launch", "--kernel and --launch exclude each other; use one of them"),
    ],
)
def test_what_does_not_go_together_is_one_line(words: str, error: str, tmp_path: Path) -> None:
    result = CommandLine(tmp_path).run(*words.split())
    assert (result.code, result.err) == (2, f"memleak-android: error: {error}\n")
