"""The imports for programs that link the library: CMake builds with it, and ndk-build's makefile says what it must."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import local_arch
from tests.support.program_server import run_program

HERE = Path(__file__).resolve().parent


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


def exact_report(app: Path, folder: Path) -> None:
    """The app records itself into the folder, every block of it, and `report` names who leaked them."""
    subprocess.run([app, folder, "every"], check=True)
    words = ["report", folder / "app.memleak", "--format", "json", "-o", folder / "report.json"]
    run_program(words).check_returncode()
    sites = json.loads((folder / "report.json").read_text())["sites"]
    names = [{frame["function"] for frame in site["frames"]} & {"leak_small", "leak_large"} for site in sites]
    held = {
        name: (site["inuse_space"], site["inuse_objects"])
        for site, found in zip(sites, names, strict=True)
        for name in found
    }
    assert held == {"leak_small": (1009 * 200, 200), "leak_large": (40009 * 30, 30)}


need_x86_64 = pytest.mark.skipif(
    local_arch() != "x86_64" or shutil.which("gcc") is None,
    reason="the example is built for x86_64, with gcc",
)
need_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None, reason="cmake is not installed (.ci/packages.txt)"
)


@need_x86_64
def test_an_app_of_ndk_builds_modules(sdk: Path, tmp_path: Path) -> None:
    """By its makefiles' documented variables, without an NDK. What the import sets is undone for what follows it."""
    words = ["make", "-s", "-f", HERE / "ndk" / "Makefile", f"MEMLEAK_SDK={sdk}", f"OUT={tmp_path}"]
    subprocess.run(words, check=True, cwd=tmp_path)
    exact_report(tmp_path / "app", tmp_path)


@need_cmake
@need_x86_64
def test_an_app_of_cmake(sdk: Path, tmp_path: Path) -> None:
    options = [f"-DMEMLEAK_SDK={sdk}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    subprocess.run(["cmake", "-S", HERE, "-B", tmp_path, *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    exact_report(tmp_path / "app", tmp_path)


@need_cmake
@pytest.mark.parametrize("abi", ["arm64-v8a", "armeabi-v7a", "x86_64", "riscv64"])
def test_cmake_takes_the_library_of_the_apps_abi(sdk: Path, abi: str, tmp_path: Path) -> None:
    """The NDK toolchain's names; the error names an ABI without a library."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(any NONE)\n"
        f'find_package(memleak CONFIG REQUIRED PATHS "{sdk}" NO_DEFAULT_PATH)\n'
        'get_target_property(library memleak::memleak IMPORTED_LOCATION)\nmessage(STATUS "takes ${library}")\n'
    )
    configure = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DANDROID_ABI={abi}"]
    done = subprocess.run(configure, check=False, capture_output=True, text=True)
    library = (sdk / ".." / abi / "libmemleak.so").resolve()
    out = done.stdout.replace(str(sdk.parent), str(sdk.parent.resolve()))
    if library.exists():
        assert f"takes {library}" in out, done.stderr
    else:
        assert done.returncode
        assert f"this installation has no library for {abi}" in " ".join(done.stderr.split())
