"""The programs and schemas of others that read what our exports write; tests skip where they are not here."""

import gzip
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from memleak_android.host.reports.export.pprof import profile_class
from tests.support import npm_packages

PPROF_PROTO = Path("/usr/share/gocode/src/github.com/google/pprof/proto/profile.proto")
GO_PPROF = Path(__file__).resolve().parents[3] / "build" / "debian" / "go-pprof"


def protoc_text(packed: bytes) -> str:
    """A pprof file as protoc prints it by the public profile.proto; fields the proto does not know are numbers."""
    if shutil.which("protoc") is None or not PPROF_PROTO.exists():
        pytest.skip("protoc or the public profile.proto is not on this machine (.ci/packages.txt)")
    words = ["protoc", "--decode=perftools.profiles.Profile", f"--proto_path={PPROF_PROTO.parent}"]
    words.append(PPROF_PROTO.name)
    done = subprocess.run(words, input=gzip.decompress(packed), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def public_pprof(packed: bytes) -> Any:
    """The message as the public schema names its fields."""
    return text_format.Parse(protoc_text(packed), profile_class()())


def heaptrack_print(path: Path, *words: str) -> str:
    """What heaptrack_print says of the file."""
    if shutil.which("heaptrack_print") is None:
        pytest.skip("heaptrack_print is not on this machine (apt-get install heaptrack)")
    done = subprocess.run(["heaptrack_print", path, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def go_pprof(path: Path, *words: str) -> str:
    """What Go's own pprof prints: `-top` and the like."""
    program = GO_PPROF / "pprof"
    if not program.exists():
        _fetch_go_pprof()
    return subprocess.run([program, *words, path], capture_output=True, text=True, check=True).stdout


def _fetch_go_pprof() -> None:
    """One program out of Debian's package of Go, which is 300 MB otherwise."""
    GO_PPROF.mkdir(parents=True, exist_ok=True)
    words = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "-qq", "golang-1.19-go"]
    subprocess.run(words, cwd=GO_PPROF, capture_output=True, check=False)
    deb = next(GO_PPROF.glob("*.deb"), None)
    if deb is None:
        pytest.skip("golang-1.19-go cannot be fetched by apt-get download (offline?)")
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpacked,
        tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive,
    ):
        for member in archive:
            if re.fullmatch(r".*/linux_\w+/pprof", member.name):
                member.name = "pprof"
                archive.extract(member, GO_PPROF, filter="data")
    deb.unlink()


def npm_json(package: str, name: str) -> Any:
    """A JSON file out of an npm package."""
    (path,) = npm_packages.folder(package).rglob(name)
    return json.loads(path.read_text())
