"""Packages of modules: by the files of pip, npm and dpkg; only of a file that is the module."""

import json
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.profile.answer import Package
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.symbols import packages
from memleak_android.host.symbols.packages import PackageSearch
from tests.support.oracles.symbols import need
from tests.unwind.fuzz.test_limits import within

ID, OTHER = "00112233445566778899aabbccddeeff00112233", "ff" * 20


def library(path: Path, build_id: str = ID) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    how = f"--build-id={f'0x{build_id}' if build_id else 'none'}"
    words = [need("gcc"), "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", path, f"-Wl,{how}"]
    subprocess.run(words, check=True)
    return path


def module(path: Path, build_id: str = ID, data: bytes = b"") -> ModuleFile:
    return ModuleFile(str(path), build_id, memoryview(data), None)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The distribution is called otherwise than its folder, and its neighbours have files of like names."""
    site = tmp_path / "lib/python3.12/site-packages"
    made = library(site / "lz4/_block.cpython-312.so")
    for name, version, listed in (
        ("lz4", "9.9", "lz4/block.py"),
        ("aaa", "7", "other/lz4/_block.cpython-312.so"),
        ("python_lz4", "4.0.2", "lz4/__init__.py,sha256=x,1\nlz4/_block.cpython-312.so"),
    ):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{listed},sha256=y,2\n")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n\nVersion: of its text\n"
        )
    return made


def test_a_wheel_by_its_record(wheel: Path) -> None:
    assert PackageSearch().find([module(wheel)]) == [Package("python-lz4", "4.0.2", "python")]


@pytest.mark.parametrize("name", ["crc32", "@node-rs/crc32"])
def test_npm_by_the_package_it_lies_in(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "node_modules/outer/node_modules" / name
    made = library(folder / "build/Release/crc32.node")
    assert PackageSearch().find([module(made)]) == [None]
    (folder / "package.json").write_text(json.dumps({"name": name, "version": "1.10.6"}))
    assert PackageSearch().find([module(made)]) == [Package(name, "1.10.6", "npm")]
    for damaged in ("[" * 100_000, '{"name": 5, "version": []}', "[]"):
        (folder / "package.json").write_text(damaged)
        assert PackageSearch().find([module(made)]) == [None]


STATUS = """Package: libfoo1
Status: install ok installed
Architecture: i386
Version: 1.0-1

Package: libfoo1
Architecture: amd64
Description: text
 Version: 7
Version: 1.2-3

Package: libfoo10
Architecture: amd64
Version: 9
"""


def test_dpkg_by_its_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may have the path before /usr was merged. Lists are read once for all modules."""
    info = tmp_path / "dpkg/info"
    info.mkdir(parents=True)
    (tmp_path / "dpkg/status").write_text(STATUS)
    made, other = (library(tmp_path / name) for name in ("usr/lib/libfoo.so.1", "usr/lib/libfoo.so.10"))
    monkeypatch.setattr(packages, "_DPKG_PATH", packages.re.compile(".*"))
    (info / "libfoo10:amd64.list").write_text(f"/.\n{other}\n")
    (info / "libfoo1:amd64.list").write_text(f"/.\n/usr/lib\n{made}\n")
    (info / "libfoo1:amd64.md5sums").write_text("x")
    search = PackageSearch(dpkg=tmp_path / "dpkg")
    expected = [Package("libfoo1", "1.2-3", "dpkg"), Package("libfoo10", "9", "dpkg"), None]
    modules = [module(made), module(other), module(tmp_path / "usr/lib/libnone.so")]
    assert search.find(modules) == expected
    (info / "libfoo1:amd64.list").unlink()
    assert search.find(modules) == expected, "each is searched once"


def test_dpkg_of_this_machine() -> None:
    found = subprocess.run(["dpkg-query", "-S", "*/libz.so.1.*"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("zlib1g is not here: apt-get install zlib1g")
    owner, _, path = found.stdout.splitlines()[0].partition(": ")
    form = ["dpkg-query", "-W", "-f", "${Package} ${Version}", owner]
    shown = subprocess.run(form, capture_output=True, text=True, check=True).stdout.split()
    real = Path(path).resolve()
    build_id = packages.read_build_id(real)
    assert PackageSearch().find([module(real, build_id)]) == [Package(shown[0], shown[1], "dpkg")]


def test_the_file_here_has_to_be_the_module(wheel: Path) -> None:
    """A recording of another machine names a path that this one has, too."""
    found = Package("python-lz4", "4.0.2", "python")
    assert PackageSearch().find([module(wheel, OTHER)]) == [None]
    assert PackageSearch(is_live=True).find([module(wheel, OTHER)]) == [None]
    data = library(wheel, "").read_bytes()
    assert PackageSearch().find([module(wheel, "", data)]) == [None], "nothing tells whose file it is"
    assert PackageSearch(is_live=True).find([module(wheel, "", data)]) == [found]
    assert PackageSearch(is_live=True).find([module(wheel, "", data[:-1] + b"x")]) == [None]


def test_a_record_beyond_the_bound_is_not_read(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_LISTED_BYTES_MAX", 40)
    assert PackageSearch().find([module(wheel)]) == [None]


def test_a_search_reads_so_many_bytes_of_records_and_no_more(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of one folder share one pass; those of others, which a user may make by the thousand, share the bound."""
    others = [library(wheel.parents[3] / f"{i}/site-packages/a.so") for i in range(3)]
    for other in others:
        (info := other.parent / "a-1.dist-info").mkdir()
        (info / "RECORD").write_text("a.so,,\n")
        (info / "METADATA").write_text("Name: a\nVersion: 1\n")
    neighbours = [library(wheel.with_name(f"{i}.so")) for i in range(3)]
    records = [*wheel.parents[1].glob("*/RECORD"), others[0].parent / "a-1.dist-info/RECORD"]
    monkeypatch.setattr(packages, "_LISTED_BYTES_MAX", sum(record.stat().st_size for record in records))
    found = PackageSearch().find([module(path) for path in (wheel, *neighbours, *others)])
    assert [each and each.name for each in found] == ["python-lz4", None, None, None, "a", None, None]


def test_a_name_of_blanks_costs_no_more_than_its_length(wheel: Path) -> None:
    for file in wheel.parents[1].glob("*/METADATA"):
        file.write_text(f"Name: a{' ' * 60_000}b\nVersion: 1\n")
    with within(5):  # quadratic: ten
        (found,) = PackageSearch().find([module(wheel)])
    assert found and len(found.name) == packages._TEXT_MAX
