"""SELinux policies to load at run time: each refuses one action to all processes, the last permits everything."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.debian_packages import Unavailable

RULES = Path(__file__).parent / "android" / "selinux.cil"
# Denials of a phone's policy for apps and the shell: BPF programs; ptrace; written memory made executable.
REFUSABLE = {
    "bpf": "(allow su self (bpf (prog_load)))\n",
    "ptrace": "(allow su self (process (ptrace)))\n",
    "execmem": "(allow su self (process (execmem)))\n(allow su self (file (execmod)))\n",
}
POLICY_VERSION = "33"  # the newest that Linux 5.10 reads (security/selinux/include/security.h)
FOLDER = "/system/etc/selinux"


def policies() -> dict[str, bytes]:
    """The binary policies "permits" and, for each of REFUSABLE, "refuses_…". Raises Unavailable."""
    rules = RULES.read_text()
    found = {"permits": _compiled(rules + "".join(REFUSABLE.values()))}
    for name in REFUSABLE:
        others = "".join(rule for other, rule in REFUSABLE.items() if other != name)
        found[f"refuses_{name}"] = _compiled(rules + others)
    return found


def load_command(name: str) -> str:
    """Makes the kernel take one of the policies; to be run as root. The kernel wants it in one piece."""
    return f"dd bs=64k if={FOLDER}/{name} of=/sys/fs/selinux/load"


def _compiled(rules: str) -> bytes:
    if shutil.which("secilc") is None:
        raise Unavailable("secilc is not on this machine (apt-get install secilc)")
    with tempfile.TemporaryDirectory() as folder:
        source, policy = Path(folder, "rules.cil"), Path(folder, "policy")
        source.write_text(rules)
        words = ["secilc", *f"-U allow -M true -c {POLICY_VERSION} -f /dev/null -o".split()]
        subprocess.run([*words, policy, source], check=True)
        return policy.read_bytes()
