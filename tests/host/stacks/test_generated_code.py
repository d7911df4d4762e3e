"""Code that a program wrote into memory and called: labelled in reports, the same site in each run, and no file asked for."""

import platform
from pathlib import Path

import pytest

from memleak_android.host.profile.generated_code import code_label, is_generated
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles
from memleak_android.unwind.maps import Mapping
from tests.support.workloads import built, run


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/memfd:jit-cache (deleted)", "[JIT]"),
        ("/memfd:jit-zygote-cache", "[JIT]"),
        ("/dev/ashmem/dalvik-jit-code-cache_1234 (deleted)", "[JIT]"),
        ("[anon:dalvik-jit-code-cache]", "[JIT]"),
        ("[anon:dalvik-zygote-jit-code-cache]", "[JIT]"),
        ("[anon:v8]", "[generated code]"),
        ("[anon]", "[generated code]"),
    ],
)
def test_names_of_such_memory(path: str, label: str) -> None:
    assert is_generated(path) and code_label(path) == label


@pytest.mark.parametrize(
    "path",
    [
        "/memfd:libjit.so (deleted)",
        "/system/lib64/libartjit.so",
        "/data/jit-cache",
        "[vdso]",
        "[stack]",
        "libc.so",
        "",
    ],
)
def test_what_is_a_file_or_the_kernels(path: str) -> None:
    assert not is_generated(path)


def test_memory_without_code_is_not_a_module() -> None:
    files = ModuleFiles(LocalFiles(False))
    code, data = (Mapping(4096, 8192, permissions, 0, "", "00:00", 0) for permissions in ("r-xp", "rw-p"))
    assert (files.number(1, code), files.generated(data)) == (None, None)
    assert files.generated(code) == files.generated(code) == 0
    assert [file.path for file in files.files] == ["[anon]"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program writes x86-64 code")
@pytest.mark.parametrize(
    ("kind", "module", "label"),
    [("memfd", "/memfd:jit-cache (deleted)", "[JIT]"), ("anonymous", "[anon]", "[generated code]")],
)
def test_a_program_that_makes_code(tmp_path: Path, kind: str, module: str, label: str) -> None:
    runs = [run("preload", tmp_path, "--", built("generated_code"), kind, options=["-v"]) for _ in range(2)]
    sites = [next(site for site in one.sites() if site["inuse_space"] == 23 * 1009) for one in runs]
    for one, site in zip(runs, sites, strict=True):
        assert [frame["function"] for frame in site["frames"][1:3]] == ["leak", ""]
        assert site["frames"][2]["module"] == module
        assert f"{label} [{module.removeprefix('/').removesuffix(' (deleted)')}]" in one.err.replace(
            "  ", " "
        )
        assert not any("jit" in note or "anon" in note for note in one.report["notes"])
        assert "link it with -Wl,--build-id" not in one.err
    assert sites[0]["id"] == sites[1]["id"]
