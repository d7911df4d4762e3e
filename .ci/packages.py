"""Installs the missing Debian packages of the named groups (.ci/packages.txt), or says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("packages.txt")


def missing_packages(groups: list[str]) -> dict[str, str]:
    """Package → purpose, for packages whose program or file is missing."""
    rows = (line.split(None, 3) for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return {row[1]: row[3] for row in rows if row and row[0] in groups and not _is_here(row[2])}


def _is_here(program: str) -> bool:
    """Looks for a program by its name, for other files (headers) by their path."""
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None


def install(packages: list[str]) -> bool:
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    # Do not remove an installed package: cross compilers, for example, conflict with gcc-multilib.
    words = ["install", "-qq", "-y", "--no-install-recommends", "--no-remove", *packages]
    # Try without an update first: it may work offline. Containers have no lists.
    for before in ([], ["update", "-qq"]):
        if before:
            subprocess.run(["apt-get", *before], check=False, env=environment, stdout=subprocess.DEVNULL)
        done = subprocess.run(["apt-get", *words], check=False, env=environment, capture_output=True)
        if done.returncode == 0:
            return True
    return False


def main(groups: list[str]) -> None:
    missing = missing_packages(groups)
    if not missing:
        return
    names = " ".join(sorted(missing))
    for package, purpose in sorted(missing.items()):
        print(f"missing: {package} ({purpose})")
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"the tests that need them are skipped; to have them: sudo apt-get install {names}", flush=True)
        return
    print(f"installing with apt-get: {names}", flush=True)
    if not install(sorted(missing)):
        print("apt-get could not install them (offline?): the tests that need them are skipped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
