"""Contents of the machine's image: no machine needed."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.emulator.apps import App
from tests.emulator.bionic import PAGE_BYTES, Apk
from tests.emulator.cpio import NewcArchive
from tests.emulator.debian import Suite, Unavailable, unpacked_from_first
from tests.emulator.elf import needed, shared_libraries
from tests.emulator.kernels import load_order, module_depends

HEADER_BYTES = 110


def entries(archive: bytes) -> list[tuple[str, int, int, int, bytes]]:
    """(name, mode, uid, gid, content) of a newc archive, up to its trailer."""
    found: list[tuple[str, int, int, int, bytes]] = []
    offset = 0
    while True:
        assert archive[offset : offset + 6] == b"070701"
        fields = [int(archive[offset + 6 + 8 * i : offset + 14 + 8 * i], 16) for i in range(13)]
        name_at = offset + HEADER_BYTES
        name = archive[name_at : name_at + fields[11] - 1].decode()
        if name == "TRAILER!!!":
            return found
        start = (name_at + fields[11] + 3) // 4 * 4
        found.append((name, fields[1], fields[2], fields[3], archive[start : start + fields[6]]))
        offset = (start + fields[6] + 3) // 4 * 4


def test_owners_and_modes_are_words_of_the_archive() -> None:
    stream = io.BytesIO()
    archive = NewcArchive(stream)
    archive.folder("/data/app", 0o771, 1000, 1000)
    archive.file("/data/app/su", b"12345", 0o4755)
    archive.file("/data/app/su", b"a second one is left out")
    archive.link("/bin", "/system/bin")
    archive.close()
    assert entries(stream.getvalue()) == [
        ("data", 0o040755, 0, 0, b""),
        ("data/app", 0o040771, 1000, 1000, b""),
        ("data/app/su", 0o104755, 0, 0, b"12345"),
        ("bin", 0o120777, 0, 0, b"/system/bin"),
    ]
    assert len(stream.getvalue()) % 512 == 0


def test_modules_come_after_what_they_depend_on(tmp_path: Path) -> None:
    for name, depends in (
        ("virtio_net", b"net_failover,virtio"),
        ("net-failover", b"failover"),
        ("virtio", b""),
    ):
        (tmp_path / f"{name}.ko").write_bytes(b"\0license=GPL\0depends=" + depends + b"\0name=x\0")
    (tmp_path / "failover.ko").write_bytes(b"\0depends=\0")
    (tmp_path / "unrelated.ko").write_bytes(b"\0depends=\0")
    ordered = [name for name, _ in load_order(tmp_path, ("virtio_net", "built_in"))]
    assert ordered == ["failover.ko", "net_failover.ko", "virtio.ko", "virtio_net.ko"]


def test_a_file_without_module_information_depends_on_nothing() -> None:
    assert module_depends(b"\x7fELF") == []


def test_a_library_in_an_apk_can_be_mapped() -> None:
    apk = Apk.holding("lib/arm64-v8a/libx.so", b"\x7fELF and more")
    assert apk.offset % PAGE_BYTES == 0 and apk.content[apk.offset :].startswith(b"\x7fELF and more")
    with zipfile.ZipFile(io.BytesIO(apk.content)) as archive:
        assert archive.read("lib/arm64-v8a/libx.so") == b"\x7fELF and more"
        assert archive.testzip() is None


def test_libraries_of_libraries_are_found() -> None:
    program = Path(shutil.which("apt-get") or pytest.skip("apt-get is not on this machine"))
    names = needed(program)
    assert "libc.so.6" in names
    folders = [Path("/usr/lib/x86_64-linux-gnu"), Path("/lib/x86_64-linux-gnu")]
    found = {path.name for path in shared_libraries([program], folders)}
    assert set(names) - {"ld-linux-x86-64.so.2"} <= found and len(found) > len(names)


def test_an_app_s_lines_are_those_of_android() -> None:
    app = App("com.example.x", 10200, debuggable=True)
    assert app.user == "u0_a200"
    assert app.packages_list_line.split()[:4] == ["com.example.x", "10200", "1", "/data/user/0/com.example.x"]
    assert app.library == f"{app.directory}/lib/arm64/libleaky.so"


def test_without_apt_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.emulator.debian.BUILD", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get is not on this machine"):
        Suite("trixie", "arm64").unpacked("adbd")


def test_an_unknown_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.emulator.debian.BUILD", tmp_path)
    monkeypatch.setattr(Suite, "_apt", lambda *_: "")
    with pytest.raises(Unavailable, match="adbd:arm64 of Debian trixie cannot be fetched"):
        Suite("trixie", "arm64").unpacked("adbd")
    with pytest.raises(Unavailable, match="trixie has no linux-image-x"):
        Suite("trixie", "arm64").depends("linux-image-x")


def test_an_incomplete_suite_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unpacked(suite: Suite, *packages: str) -> Path:
        asked.append((suite.name, suite.architecture, packages))
        if suite.name != "bookworm":
            raise Unavailable(suite.name)
        return Path(suite.name)

    monkeypatch.setattr(Suite, "unpacked", unpacked)
    assert unpacked_from_first(("trixie", "bookworm"), "armhf", "libc6") == Path("bookworm")
    assert asked == [("trixie", "armhf", ("libc6",)), ("bookworm", "armhf", ("libc6",))]
    with pytest.raises(Unavailable, match="sid"):
        unpacked_from_first(("trixie", "sid"), "armhf", "libc6")
