"""The machine the figures belong to."""

import hashlib
import os
import platform
import re
import subprocess
import time
from pathlib import Path


def describe(binaries: list[Path]) -> dict[str, str]:
    """Lines for the head of a result."""
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    virtual = "hypervisor" in (flags[1].split() if flags else ())
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown system")
    return {
        "cpu": f"{model[1] if model else platform.machine()}, {os.cpu_count()} CPUs"
        + (", in a virtual machine" if virtual else ""),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "system": f"{system}, {' '.join(platform.libc_ver())}",
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()) + " (1, 5, 15 minutes, at the start)",
        "binaries": ", ".join(
            f"{one.name} {hashlib.sha256(one.read_bytes()).hexdigest()[:12]}" for one in binaries
        ),
    }


def foreign_probes() -> bool:
    """Whether another tracer probes every process now: an untraced child has a page for its probes."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert child.stdin
        time.sleep(0.05)
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        child.stdin.close()
    return "[uprobes]" in maps
