"""Which `bcc` is loaded, and each refusal of --tracer bcc by a line that names the way out."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.bcc.session import code_map
from memleak_android.host.tracers.local.start import check_bcc

APT = "apt-get install python3-bpfcc"


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the test's `bcc` module before and afterwards."""
    monkeypatch.setitem(sys.modules, "bcc", sys)
    monkeypatch.delitem(sys.modules, "bcc")


def module(folder: Path, text: str) -> Path:
    (folder / "bcc").mkdir(parents=True)
    (folder / "bcc" / "__init__.py").write_text(text)
    (folder / "bcc" / "libbcc.py").touch()
    return folder


def test_missing_module_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(TracerError) as caught:
        debian_module.load(tmp_path)
    assert str(caught.value) == f"Debian's bcc is not in {tmp_path}; {APT}"


def test_debians_is_taken_where_both_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install bcc` brings another program of that name."""
    lattice = tmp_path / "site" / "bcc"
    lattice.mkdir(parents=True)
    (lattice / "__init__.py").write_text("raise SystemExit('the wrong bcc was imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    loaded = debian_module.load(module(tmp_path / "debian", "from bcc import libbcc\nclass BPF: pass"))
    assert loaded.BPF and Path(loaded.libbcc.__file__).parent == tmp_path / "debian" / "bcc"


def test_a_module_without_its_library_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TracerError) as caught:
        debian_module.load(module(tmp_path, "raise OSError('libbcc.so.0: cannot open shared object file')"))
    assert str(caught.value) == (
        f"{tmp_path}/bcc cannot be imported: libbcc.so.0: cannot open shared object file; {APT}"
    )


def test_a_wrong_tree_of_headers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(TracerError) as caught:
        debian_module.kernel_headers()
    assert str(caught.value) == (
        f"{tmp_path} holds no kernel headers; BCC_KERNEL_SOURCE names a configured kernel tree"
    )
    (tmp_path / "include" / "generated").mkdir(parents=True)
    assert debian_module.kernel_headers() == str(tmp_path)


def test_missing_headers_are_reported_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    monkeypatch.setattr(debian_module, "KHEADERS", tmp_path / "kheaders")
    monkeypatch.setattr(debian_module.platform, "release", lambda: "9.9-none")
    with pytest.raises(TracerError) as caught:
        debian_module.kernel_headers()
    assert str(caught.value) == (
        f"no kernel headers to compile with (neither /lib/modules/9.9-none/build nor {tmp_path}/kheaders);"
        " apt-get install linux-headers-9.9-none, or name a tree of headers by BCC_KERNEL_SOURCE"
    )


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("--follow", {"follow": True}),
        ("--mmap", {"mmap": True}),
        ("--trace", {"events": True}),
        ("--perf-events", {"perf_events": True}),
        ("--unwind fp", {"unwind": "both"}),
    ],
)
def test_options_of_other_tracers(option: str, fields: dict[str, Any]) -> None:
    with pytest.raises(TracerError) as caught:
        check_bcc(SessionOptions(pid=1, **fields))
    assert str(caught.value) == f"--tracer bcc has no {option}; use --tracer bpf with it"


MAPS = """\
00400000-00420000 r-xp 00000000 00:01 7 /program
7f0000000000-7f0000020000 r--p 00000000 00:01 8 /library
7f0000020000-7f0000040000 r-xp 00020000 00:01 8 /library
7f0000050000-7f0000058000 r-xp 00000000 00:01 9 /small
7f0000058000-7f0000060000 rw-p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""


def bits(maps_text: str) -> tuple[set[int], tuple[int, int]]:
    """Hashes of the granules that are not code, and the bounds of code at fixed addresses."""
    data = np.frombuffer(code_map(maps_text), np.uint8)
    assert len(data) == 32_768 + 16
    low, high = data[32_768:].view("<u8").tolist()
    return set(np.flatnonzero(np.unpackbits(data[:32_768], bitorder="little")).tolist()), (low, high)


def entry(address: int) -> int:
    granule = address >> 16
    return (granule ^ granule >> 18) & 0x3FFFF


def test_code_and_what_is_not() -> None:
    no_code, bounds = bits(MAPS)
    assert bounds == (0x400000, 0x420000)
    # data beside code in one granule counts as code
    assert no_code == {entry(0x7F0000000000), entry(0x7F0000010000)}


def test_a_huge_mapping_takes_bounded_time() -> None:
    assert bits("10000000000-600000000000 rw-p 00000000 00:00 0\n") == (set(range(1 << 18)), (1, 1))
