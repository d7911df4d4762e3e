"""The baseline by frame pointers: the shim's own walk, what it sends, and how far it agrees with unwind information."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.recording.file import Recording
from memleak_android.host.stacks.address_spaces import AddressSpaces
from memleak_android.host.stacks.samples import read_samples
from memleak_android.host.stacks.stack_unwinder import arch_of
from memleak_android.host.wire.blocks import EvidenceFlag
from memleak_android.host.wire.frame_chains import SentChains
from memleak_android.unwind.walk import frame_chain
from tests.support.gcc import DEVICE
from tests.support.preload_session import run_preloaded
from tests.support.program_server import run_program
from tests.support.workloads import PROGRAMS, both_tracers, built, run

KEPT, OMITTED = "-fno-omit-frame-pointer", "-fomit-frame-pointer"
MACHINES = [
    ("x86_64-linux-musl", "", ("-mno-red-zone",)),
    ("aarch64-linux-musl", "qemu-aarch64-static", ()),
    ("arm-linux-musleabihf", "qemu-arm-static", ("-marm",)),
    ("arm-linux-musleabihf", "qemu-arm-static", ("-mthumb",)),
]


@pytest.mark.parametrize(("machine", "emulator", "flags"), MACHINES)
def test_the_walk_finds_the_callers(
    machine: str, emulator: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    if emulator and shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is not installed")
    build(tmp_path, "-target", machine, *flags)
    run_ = [emulator] if emulator else []
    walked = subprocess.run(
        [*run_, tmp_path / "walk"], check=False, capture_output=True, text=True, timeout=60
    )
    assert (walked.returncode, walked.stderr) == (0, "")


def build(folder: Path, *target: str) -> None:
    """The walk without a C library: for a second architecture none has to be built."""
    compiler = [sys.executable, "-m", "ziglang", "cc", *target]
    flags = ["-O2", KEPT, "-mno-omit-leaf-frame-pointer", "-fno-optimize-sibling-calls", "-ffreestanding"]
    flags += ["-fno-sanitize=all", "-I", str(DEVICE), "-I", str(DEVICE / "preload")]
    shim = (DEVICE / "preload" / name for name in ("stacks/frame_chain.c", "freestanding/sandbox.c"))
    sources = [PROGRAMS / "parts" / "frame_chain.c", *shim]
    objects = []
    for number, source in enumerate(sources):
        objects.append(folder / f"{number}.o")
        done = subprocess.run(
            [*compiler, *flags, "-c", source, "-o", objects[-1]], check=False, capture_output=True, text=True
        )
        if "No module named ziglang" in done.stderr:
            pytest.skip("ziglang is not installed (pip install ziglang)")
        assert done.returncode == 0, done.stderr
    subprocess.run([*compiler, "-static", "-nostdlib", *objects, "-o", folder / "walk"], check=True)


def program(*flags: str) -> Path:
    return built(PROGRAMS / "frame_pointer_workload", *flags)


@both_tracers
def test_code_that_keeps_frame_pointers_agrees(tracer: str, tmp_path: Path) -> None:
    report = run(tracer, tmp_path, "--", program(KEPT), options=["--unwind", "both"]).report
    assert report["target"]["unwind"] == "both"
    agreed = report["unwinding"]["fp_agreement"]
    # Debian builds its C library without frame pointers: its own block for a thread, and what BPF sees the loader map.
    without = 1 if tracer == "preload" else 12
    assert agreed["stacks"] >= 20
    assert agreed["identical"] + agreed["start_missing"] >= agreed["stacks"] - without
    assert agreed["wrong"] == 0
    assert agreed["mean_common_prefix"] > agreed["mean_depth"] - 3


def test_by_frame_pointers_nothing_of_the_stack_is_sent() -> None:
    session = run_preloaded([program(KEPT)], unwind="fp")  # type: ignore[arg-type]
    rows = np.concatenate([batch.rows for batch in session.evidence])
    assert len(rows) and not rows["stack_bytes"].any()
    assert (rows["flags"] & np.uint16(EvidenceFlag.FRAME_CHAIN)).all()
    assert set(rows["key"].tolist()) == set(session.live["key"].tolist())


@pytest.mark.parametrize("tracer", ["preload", pytest.param("bpf", marks=pytest.mark.proof)])
def test_sites_by_frame_pointers_are_those_by_cfi(tracer: str, tmp_path: Path) -> None:
    found = []
    for way in ("cfi", "fp"):
        done = run(tracer, tmp_path, "--", program(KEPT), options=["--unwind", way])
        found.append({(functions(site), site["inuse_objects"]) for site in done.sites()})
        methods = {frame["method"] for site in done.sites() for frame in site["frames"][2:]}
    assert methods == {"fp"}
    assert found[0] == found[1]
    assert len(found[0]) >= 20


def functions(site: dict[str, list[dict[str, str]]]) -> tuple[str, ...]:
    """Places in the program's own; the C library keeps no frames by which its callers could be found."""
    own = ("leaf", "deep", "wide", "run", "main")
    return tuple(frame["vaddr"] for frame in site["frames"] if frame["function"] in own)


def test_the_targets_walk_is_the_hosts(tmp_path: Path) -> None:
    recording = tmp_path / "a.memleak"
    options = ["--tracer", "preload", "--unwind", "both", "--every-stack", "--keep-stacks", "-o", recording]
    for flags in ((KEPT,), (OMITTED,)):
        run_program(["record", *options, "--force", "--", program(*flags)]).check_returncode()
        sent, walked = chains_of(recording)
        assert sent.is_sent.all()
        assert len(sent.counts) > 100
        assert sent.counts.tolist() == walked.counts.tolist()
        assert sent.addresses.tolist() == walked.addresses.tolist()
        assert sent.end.tolist() == walked.end.tolist()


def chains_of(path: Path) -> tuple[SentChains, frame_chain.Chains]:
    capture, recording = Capture(), Recording(path)
    for offset, block in recording.blocks():
        capture.add(block, offset)
    references = capture.evidence()
    spaces = AddressSpaces(capture.maps, capture.mappings, capture.processes)
    space = spaces.index(references["pid"], references["timestamp_ns"])
    (samples,) = read_samples(references, space, recording.read_block, arch_of(capture.arch_number))
    recording.close()
    masks = np.array([space.signature_mask(samples.batch.arch) for space in spaces.spaces], np.uint64)
    return samples.chains, frame_chain.ChainWalk(samples.batch, masks[samples.batch.space]).run()
