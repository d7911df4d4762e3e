"""The imports for programs that link the library: CMake builds with it, and ndk-build's makefile says what it must."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import local_arch
from tests.support.program_server import run_program

HERE = Path(__file__).resolve().parent
# Compiler and linker calls of the NDK's build system for one module, in its order.
STAND_IN = """
CLEAR_VARS := clear.mk
PREBUILT_SHARED_LIBRARY := prebuilt.mk
TARGET_ARCH_ABI := x86_64
LOCAL_PATH := /the/app
include {sdk}/Android.mk
$(info then $(LOCAL_PATH))
all: ;
"""
PREBUILT_STAND_IN = """
$(info $(LOCAL_MODULE) $(wildcard $(LOCAL_PATH)/$(LOCAL_SRC_FILES)) $(wildcard $(LOCAL_EXPORT_C_INCLUDES)/memleak.h))
"""


@pytest.fixture(scope="module")
def sdk() -> Path:
    done = run_program(["sdk"])
    if "make device" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


def test_the_header_is_the_sources_own(sdk: Path) -> None:
    source = HERE.parents[2] / "device" / "preload" / "include" / "memleak.h"
    assert (sdk / "memleak.h").read_bytes() == source.read_bytes()
    check = ["-x", "c++", "-std=c++11", "-pedantic-errors", "-Wall", "-Werror", "-fsyntax-only"]
    if shutil.which("g++"):
        subprocess.run(["g++", *check, "-Wno-pragma-once-outside-header", sdk / "memleak.h"], check=True)


def test_ndk_build_finds_library_and_header(sdk: Path, tmp_path: Path) -> None:
    (tmp_path / "clear.mk").write_text("LOCAL_MODULE :=\nLOCAL_SRC_FILES :=\nLOCAL_EXPORT_C_INCLUDES :=\n")
    (tmp_path / "prebuilt.mk").write_text(PREBUILT_STAND_IN)
    (tmp_path / "Makefile").write_text(STAND_IN.format(sdk=sdk))
    done = subprocess.run(["make", "-s"], cwd=tmp_path, check=True, capture_output=True, text=True)
    module, then = done.stdout.splitlines()[:2]
    library = sdk / ".." / "x86_64" / "libmemleak.so"
    assert module.split() == ["memleak", str(library), str(sdk / "memleak.h")]
    assert then == "then /the/app"


def exact_report(app: Path, folder: Path) -> None:
    """The app records itself into the folder, every block of it, and `report` names who leaked them."""
    subprocess.run([app, folder, "every"], check=True)
    words = ["report", folder / "app.memleak", "--format", "json", "-o", folder / "report.json"]
    run_program(words).check_returncode()
    sites = json.loads((folder / "report.json").read_text())["sites"]
    held = {
        name: [
            (site["inuse_space"], site["inuse_objects"])
            for site in sites
            if name in [frame["function"] for frame in site["frames"]]
        ]
        for name in ("leak_small", "leak_large")
    }
    assert held == {"leak_small": [(1009 * 200, 200)], "leak_large": [(40009 * 30, 30)]}


def need_x86_64() -> None:
    if local_arch() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("the example app is built for x86_64, with gcc")


def test_an_app_of_ndk_builds_modules(sdk: Path, tmp_path: Path) -> None:
    """By its makefiles' documented variables, without an NDK."""
    need_x86_64()
    words = ["make", "-s", "-f", HERE / "ndk" / "Makefile", f"MEMLEAK_SDK={sdk}", f"OUT={tmp_path}"]
    subprocess.run(words, check=True, cwd=tmp_path)
    exact_report(tmp_path / "app", tmp_path)


def need_cmake() -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed (.ci/packages.txt)")


def test_an_app_of_cmake(sdk: Path, tmp_path: Path) -> None:
    need_cmake()
    need_x86_64()
    configure = [
        "cmake",
        "-S",
        HERE,
        "-B",
        tmp_path,
        f"-DMEMLEAK_SDK={sdk}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    ]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    exact_report(tmp_path / "app", tmp_path)


@pytest.mark.parametrize("abi", ["arm64-v8a", "armeabi-v7a", "x86_64", "riscv64"])
def test_cmake_takes_the_library_of_the_apps_abi(sdk: Path, abi: str, tmp_path: Path) -> None:
    """The NDK toolchain's names; the error names an ABI without a library."""
    need_cmake()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(any NONE)\n"
        f'find_package(memleak CONFIG REQUIRED PATHS "{sdk}" NO_DEFAULT_PATH)\n'
        'get_target_property(library memleak::memleak IMPORTED_LOCATION)\nmessage(STATUS "takes ${library}")\n'
    )
    configure = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DANDROID_ABI={abi}"]
    done = subprocess.run(configure, check=False, capture_output=True, text=True)
    library = (sdk / ".." / abi / "libmemleak.so").resolve()
    if library.exists():
        assert f"takes {library}" in done.stdout.replace(str(sdk.parent), str(sdk.parent.resolve())), (
            done.stderr
        )
    else:
        assert done.returncode and f"this installation has no library for {abi}" in " ".join(
            done.stderr.split()
        )
