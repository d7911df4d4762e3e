"""Android.mk read by make with the NDK's words made up: it names the sources that our own build takes.

That the NDK builds it is not shown: none was at hand.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NDK = """
my-dir := {root}/ndk-build
TARGET_ARCH_ABI := {abi}
CLEAR_VARS := {folder}/clear.mk
BUILD_SHARED_LIBRARY := {folder}/show.mk
BUILD_STATIC_LIBRARY := {folder}/show.mk
BUILD_EXECUTABLE := {folder}/show.mk
all:
include {root}/ndk-build/Android.mk
"""
SHOW = "$(info $(LOCAL_MODULE): $(LOCAL_SRC_FILES))\n$(info flags of $(LOCAL_MODULE): $(LOCAL_CFLAGS))\n"


def modules(folder: Path, abi: str) -> dict[str, set[str]]:
    """What Android.mk says of each module: its sources by its name, its flags by `flags of NAME`."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    (folder / "clear.mk").write_text("LOCAL_CFLAGS :=\nLOCAL_LDFLAGS :=\n")
    (folder / "show.mk").write_text(SHOW)
    (folder / "Makefile").write_text(NDK.format(root=ROOT, folder=folder, abi=abi))
    done = subprocess.run(["make", "-s", "-C", folder], capture_output=True, text=True, check=True)
    lines = (line.partition(":") for line in done.stdout.splitlines() if ": " in line)
    return {name: set(words.split()) for name, _, words in lines}


def files(*patterns: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}


@pytest.mark.parametrize("abi", ["arm64-v8a", "armeabi-v7a", "x86_64"])
def test_agent_and_shim_are_made_of_our_sources(tmp_path: Path, abi: str) -> None:
    found = modules(tmp_path, abi)
    assert list(found)[::2] == ["memleak", "memleak_zlib", "memleak_elf", "memleak_bpf", "memleakd"]
    assert found["memleak"] == files("device/preload/*.c", "device/preload/*/*.c", "device/cfi/*.c")
    ours = {one for one in found["memleakd"] if one.startswith("device/")}
    assert ours == files("device/agent/*.c", "device/agent/*/*.c", "device/cfi/*.c")
    assert ("-mbranch-protection=pac-ret" in found["flags of memleak"]) == (abi == "arm64-v8a")


def test_the_libraries_are_those_that_are_fetched(tmp_path: Path) -> None:
    archives = {line.split()[-1] for line in (ROOT / "ndk-build/sources.txt").read_text().splitlines()[2:]}
    text = (ROOT / "ndk-build/Android.mk").read_text()
    assert all(f"build/device/src/{folder}" in text for folder in archives)
    if not (ROOT / "build/device/src/.complete").exists():
        pytest.skip("the sources of the libraries are not here (make device)")
    found = modules(tmp_path, "arm64-v8a")
    assert all(len(found[name]) > 10 for name in ("memleak_zlib", "memleak_elf", "memleak_bpf"))
