"""Names of kernel frames: only those of the kernel that was recorded."""

import os
import platform
from pathlib import Path

import pytest

from memleak_android.host.perf_data.code_locations import KernelSymbols
from memleak_android.host.perf_data.container import PerfData
from memleak_android.host.perf_data.sampled_stacks import KERNEL

BUILD_ID = bytes(range(1, 21))
KALLSYMS = """ffffffff81000000 T startup
ffffffff81000800 d a_datum
ffffffff81001000 t do_one\t[module]
ffffffff81002000 t bpf_prog_1234_other\t[bpf]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("proc", "sys/kernel"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/kallsyms").write_text(KALLSYMS)
    (tmp_path / "proc/stat").write_text("cpu 0\nbtime 1000\n")
    (tmp_path / "sys/kernel/notes").write_bytes(b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0" + BUILD_ID)
    (tmp_path / "perf.data").write_bytes(b"")
    return tmp_path


def names(recording: PerfData, root: Path, *addresses: int) -> list[tuple[str, int]]:
    symbols = KernelSymbols(recording, root)
    return [(frame.function, frame.offset) for a in addresses for frame in symbols.resolve(a)]


def recorded(root: Path, build_id: bytes = BUILD_ID) -> PerfData:
    return PerfData(root / "perf.data", build_ids={KERNEL: build_id.hex()})


def test_functions_are_named(root: Path) -> None:
    addresses = (0xFFFF_FFFF_8100_0810, 0xFFFF_FFFF_8100_1004, 0xFFFF_FFFF_8000_0000)
    assert names(recorded(root), root, *addresses) == [("startup", 0x810), ("do_one", 4), ("", 0)]


def test_loaded_programs_are_not_those_of_the_recording(root: Path) -> None:
    assert names(recorded(root), root, 0xFFFF_FFFF_8100_2004) == [("", 0)]


def test_another_kernel_has_other_names(root: Path) -> None:
    assert names(recorded(root, b"\7" * 20), root, 0xFFFF_FFFF_8100_0000) == [("", 0)]


def test_hidden_addresses_name_nothing(root: Path) -> None:
    (root / "proc/kallsyms").write_text("0000000000000000 T startup\n")
    assert names(recorded(root), root, 0xFFFF_FFFF_8100_0000) == [("", 0)]


@pytest.mark.parametrize(
    ("host", "release", "made", "known"),
    [
        (platform.node(), platform.release(), 2000, True),
        (platform.node(), platform.release(), 500, False),
        ("elsewhere", platform.release(), 2000, False),
        (platform.node(), "1.0", 2000, False),
    ],
)
def test_without_a_build_id_host_release_and_boot_decide(
    root: Path, host: str, release: str, made: int, known: bool
) -> None:
    os.utime(root / "perf.data", (made, made))
    recording = PerfData(root / "perf.data", host=host, release=release)
    assert names(recording, root, 0xFFFF_FFFF_8100_0000) == [("startup" if known else "", 0)]
