"""Fetching and unpacking of the agent's libraries: whose mirrors, which archives, no way out of the folder."""

import contextlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.support.gcc import ndk_build

sources = ndk_build("sources")

ONE_LINE = """\
# deb http://old.example/debian bookworm main
deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib
deb http://mirror.example/debian-security bookworm-security main
deb-src http://mirror.example/debian-security bookworm-security main
deb https://vendor.example/apt cloud-sdk-bookworm main
"""

STANZAS = """\
Types: deb
# a remark
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Architectures: amd64
Signed-By: /k.gpg

Types: deb
URIs: https://vendor.example/node
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def test_one_line_sources_become_source_lines_of_the_distribution_only() -> None:
    assert sources.source_lines(ONE_LINE, "bookworm").splitlines() == [
        "deb-src [signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib",
        "deb-src http://mirror.example/debian-security bookworm-security main",
    ]


def test_stanzas_keep_their_key_and_lose_other_vendors() -> None:
    assert sources.source_stanzas(STANZAS, "bookworm").strip().splitlines() == [
        "Types: deb-src",
        "Suites: bookworm bookworm-updates",
        "URIs: http://mirror.example/debian",
        "Components: main",
        "Signed-By: /k.gpg",
    ]


def test_codename_is_read_from_os_release() -> None:
    assert sources.codename("ID=debian\nVERSION_CODENAME=bookworm\n") == "bookworm"
    assert sources.codename("ID=other\n") == "stable"


def test_without_apt_the_files_to_provide_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    with pytest.raises(sources.SourceError) as raised:
        sources.bring(tmp_path / "downloads", tmp_path / "src", tmp_path / "apt")
    assert "no apt-get here (put elfutils" not in str(raised.value)  # in the order of the table
    assert "no apt-get here (put libbpf_1.1.2.orig.tar.gz, elfutils_0.188.orig.tar.bz2, zlib" in str(
        raised.value
    )
    assert str(tmp_path / "downloads") in str(raised.value)


def test_an_archive_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "fetch", lambda missing, downloads, state: None)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    for source in sources.read_pins():
        (downloads / source.archive).write_bytes(b"something else")
    with pytest.raises(sources.SourceError, match=r"libbpf_1\.1\.2\.orig\.tar\.gz is not the pinned archive"):
        sources.bring(downloads, tmp_path / "src", tmp_path / "apt")
    assert not (tmp_path / "src").exists()


@pytest.mark.parametrize("name", ["../escaped", "/tmp/memleak-escaped", "inner/../../escaped"])
@pytest.mark.parametrize("has_filter", [True, False])
def test_a_path_that_leads_outside_leads_nowhere(
    tmp_path: Path, name: str, has_filter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "hostile.tar"
    with tarfile.open(archive, "w") as bundle:
        member = tarfile.TarInfo(name)
        member.size = 4
        bundle.addfile(member, io.BytesIO(b"evil"))
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    into = tmp_path / "into"
    into.mkdir()
    with contextlib.suppress(sources.SourceError, tarfile.TarError):  # or taken as a path inside
        sources.unpack(archive, into)
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/memleak-escaped").exists()


def test_every_pin_is_a_whole_sha256() -> None:
    pins = sources.read_pins()
    assert {pin.package for pin in pins} == {"libbpf", "elfutils", "zlib"}
    assert all(len(bytes.fromhex(pin.sha256)) == 32 for pin in pins)
