"""Two SELinux policies to load at run time: one refuses BPF programs to everybody, the other permits all."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.emulator.debian import Unavailable

RULES = Path(__file__).parent / "android" / "selinux.cil"
PERMIT = "(allow su self (bpf (prog_load)))\n"
POLICY_VERSION = "33"  # the newest that Linux 5.10 reads (security/selinux/include/security.h)
FOLDER = "/system/etc/selinux"


def policies() -> dict[str, bytes]:
    """The binary policies "refuses_bpf" and "permits". Raises Unavailable."""
    rules = RULES.read_text()
    return {"refuses_bpf": _compiled(rules), "permits": _compiled(rules + PERMIT)}


def load_command(name: str) -> str:
    """Makes the kernel take one of the policies; to be run as root. The kernel wants it in one piece."""
    return f"dd bs=64k if={FOLDER}/{name} of=/sys/fs/selinux/load"


def _compiled(rules: str) -> bytes:
    if shutil.which("secilc") is None:
        raise Unavailable("secilc is not on this machine (apt-get install secilc)")
    with tempfile.TemporaryDirectory() as folder:
        source, policy = Path(folder, "rules.cil"), Path(folder, "policy")
        source.write_text(rules)
        words: list[str | Path] = [
            "secilc",
            "-U",
            "allow",
            "-M",
            "true",
            "-c",
            POLICY_VERSION,
            "-f",
            "/dev/null",
            "-o",
            policy,
            source,
        ]
        subprocess.run(words, check=True)
        return policy.read_bytes()
