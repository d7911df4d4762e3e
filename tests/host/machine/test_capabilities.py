"""Capabilities of this machine, as root and as an unprivileged user, and what refuses BPF."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.capabilities import bpf_refusal
from memleak_android.host.machine.local import machine
from memleak_android.host.machine.local.machine import probe_local

ALL = dict.fromkeys(("bpf", "bpf_mappable_array", "bpf_uprobe_programs", "uprobe_pmu", "sideband"), True)


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        ({}, ""),
        ({"kernel_btf": False, "attach_cookie": False}, ""),
        ({"bpf": False, "errors": {"bpf": "No"}}, "BPF programs may not be loaded (No)"),
        ({"uprobe_pmu": False}, "uprobes may not be placed"),
    ],
)
def test_refusals(found: dict[str, Any], refusal: str) -> None:
    assert bpf_refusal(ALL | found) == refusal


def test_this_machine() -> None:
    found = probe_local()
    assert found["kernel_btf"] == Path("/sys/kernel/btf/vmlinux").exists()
    assert found["errors"].keys() == {name for name in (*ALL, "bpf_ring_buffer") if not found[name]}
    if found["bpf"] and found["kernel_btf"]:  # built with BTF: a kernel that has all the rest, too
        assert found["bpf_ring_buffer"] and found["read_user_memory"]


def test_without_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, arch: str) -> Path:
        raise TracerError("no agent here", "build it")

    monkeypatch.setattr(machine, "find_binary", find)
    assert bpf_refusal(probe_local()) == "BPF programs may not be loaded (no agent here)"


def test_as_nobody() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    if Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text().strip() == "0":
        pytest.skip("unprivileged BPF is allowed here")
    code = (
        "import os\n"
        "from memleak_android.host.machine.capabilities import bpf_refusal\n"
        "from memleak_android.host.machine.local.machine import probe_local\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(bpf_refusal(probe_local()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "BPF programs may not be loaded (Operation not permitted)\n"
