"""Brings the sources of libbpf, elfutils and zlib here: through apt, without privileges, checked twice.

apt runs on a state of its own in the build folder: the machine's Debian mirrors (whatever they are) with
`deb` turned into `deb-src`, the machine's keys, nothing installed, nothing outside the folder written. apt
checks the archive's signature; sources.txt pins the SHA-256 of each archive besides.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PINS = Path(__file__).with_name("sources.txt")
READ_BYTES = 1 << 20


class Source(NamedTuple):
    """One line of sources.txt; folder is what the archive unpacks to."""

    sha256: str
    package: str
    archive: str
    folder: str


class SourceError(Exception):
    """The sources cannot be had; the text names the way out."""


def read_pins(path: Path = PINS) -> list[Source]:
    lines = (line.split() for line in path.read_text().splitlines() if not line.startswith("#"))
    return [Source(*fields) for fields in lines if fields]


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_whole(archive: Path, source: Source) -> bool:
    return archive.is_file() and sha256_of(archive) == source.sha256


# ---- the machine's apt sources, as source-package lines of our own ----------------------------------


def codename(os_release: str) -> str:
    found = re.search(r"^VERSION_CODENAME=\"?([\w.-]+)", os_release, re.MULTILINE)
    return found.group(1) if found else "stable"


def of_the_distribution(suites: Iterable[str], release: str) -> list[str]:
    """The suites of the distribution itself; other vendors' repositories carry other names."""
    known = {release, "stable", "oldstable"}
    return [suite for suite in suites if suite in known or suite.startswith(f"{release}-")]


def source_lines(text: str, release: str) -> str:
    """sources.list in the one-line form: each `deb` line of the distribution as `deb-src`."""
    kept = []
    for line in text.splitlines():
        found = re.match(r"\s*deb(?:-src)?\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if found and of_the_distribution([found[3]], release):
            kept.append(f"deb-src {found[1] or ''}{found[2]} {found[3]} {found[4]}")
    return "".join(f"{line}\n" for line in dict.fromkeys(kept))


def source_stanzas(text: str, release: str) -> str:
    """*.sources (deb822): each stanza of the distribution with Types: deb-src, other fields untouched."""
    kept = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        suites = next(
            (line.split(":", 1)[1].split() for line in lines if line.lower().startswith("suites:")), []
        )
        ours = of_the_distribution(suites, release)
        if ours and not any(re.match(r"enabled:\s*no", line, re.IGNORECASE) for line in lines):
            rest = [
                line for line in lines if not re.match(r"(types|suites|architectures):", line, re.IGNORECASE)
            ]
            kept.append("\n".join(["Types: deb-src", f"Suites: {' '.join(ours)}", *rest]))
    return "".join(f"{stanza}\n\n" for stanza in kept)


FORMS: dict[str, Callable[[str, str], str]] = {".list": source_lines, ".sources": source_stanzas}


def write_apt_sources(folder: Path, etc: Path, release: str) -> int:
    """Fills `folder` from the machine's apt configuration; the number of files written."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = 0
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix not in FORMS or not path.is_file():
            continue
        if text := FORMS[path.suffix](path.read_text(errors="replace"), release):
            (folder / path.name).write_text(text)
            written += 1
    return written


# ---- apt --------------------------------------------------------------------------------------------


def apt_options(state: Path) -> list[str]:
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{state}/sources.list.d",
        "Dir::State::lists": f"{state}/lists",
        "Dir::Cache": f"{state}/cache",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    if os.geteuid() == 0:  # root's apt would fetch as _apt, which may not write to this folder
        settings["APT::Sandbox::User"] = "root"
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def run_apt(state: Path, downloads: Path, *words: str) -> str:
    """Runs apt-get; its complaint, or "" when it succeeded."""
    argv = ["apt-get", *apt_options(state), "-qq", *words]
    done = subprocess.run(
        argv, cwd=downloads, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    complaint = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
    return "" if done.returncode == 0 else (complaint or [f"status {done.returncode}"])[-1]


def fetch(missing: list[Source], downloads: Path, state: Path, etc: Path = Path("/etc/apt")) -> None:
    wanted = sorted({source.package for source in missing})
    way_out = f"put {', '.join(source.archive for source in missing)} into {downloads}"
    if shutil.which("apt-get") is None:
        raise SourceError(f"could not fetch the sources of {', '.join(wanted)}: no apt-get here ({way_out})")
    release = codename(Path("/etc/os-release").read_text(errors="replace"))
    if not write_apt_sources(state / "sources.list.d", etc, release):
        raise SourceError(f"could not fetch sources: {etc} names no mirror of {release} ({way_out})")
    for folder in (state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    print(
        f"fetching with apt (private state, nothing is installed): sources of {' '.join(wanted)}", flush=True
    )
    # One broken mirror must not matter when another has the packages: only the download decides.
    complaint = run_apt(state, downloads, "update")
    refused = run_apt(state, downloads, "source", "--download-only", *wanted)
    if refused:
        raise SourceError(
            f"could not fetch the sources of {', '.join(wanted)}: {complaint or refused} ({way_out})"
        )


# ---- unpacking --------------------------------------------------------------------------------------


def unpack(archive: Path, into: Path) -> None:
    """Unpacks with the data filter (PEP 706): no absolute names, no way out of `into`, no devices."""
    with tarfile.open(archive) as bundle:
        if hasattr(tarfile, "data_filter"):
            bundle.extractall(into, filter="data")
        else:  # 3.11.0–3.11.3
            bundle.extractall(into, members=inside(bundle, into.resolve()))


def inside(bundle: tarfile.TarFile, into: Path) -> Iterable[tarfile.TarInfo]:
    for member in bundle:
        if not (into / member.name).resolve().is_relative_to(into):
            raise SourceError(f"{bundle.name!s} holds a path that leads outside: {member.name}")
        if member.isfile() or member.isdir():
            yield member


def bring(downloads: Path, into: Path, state: Path) -> None:
    """Downloads what is missing, checks all, unpacks what is not unpacked yet."""
    downloads.mkdir(parents=True, exist_ok=True)
    pins = read_pins()
    missing = [source for source in pins if not is_whole(downloads / source.archive, source)]
    if missing:
        fetch(missing, downloads, state)
    for source in pins:
        archive = downloads / source.archive
        if not is_whole(archive, source):
            what = "is not the pinned archive" if archive.exists() else "is not what the mirror has now"
            raise SourceError(
                f"{archive.name} {what} (put the file of SHA-256 {source.sha256} into {downloads})"
            )
        if not (into / source.folder / ".unpacked").exists():
            shutil.rmtree(into / source.folder, ignore_errors=True)
            unpack(archive, into)
            (into / source.folder / ".unpacked").touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--downloads", type=Path, required=True, help="where the archives are kept")
    parser.add_argument("--into", type=Path, required=True, help="where they are unpacked")
    parser.add_argument("--state", type=Path, required=True, help="apt's private state")
    chosen = parser.parse_args()
    try:
        bring(chosen.downloads.resolve(), chosen.into.resolve(), chosen.state.resolve())
    except SourceError as error:
        print(f"ndk-build: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
