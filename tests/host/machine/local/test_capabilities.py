"""Capabilities on this machine, as root and as an unprivileged user."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.machine.local.capabilities import Capabilities, probe_local

ALL = Capabilities(
    machine="x86_64", kernel="6.1", uid=0, bpf_error="", ring_buffer_error="", mappable_array_error="",
    probe_read_user_error="", attach_cookie_error="", uprobe_error="", has_btf=True, lockdown="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "refusal"),
    [
        ({}, ""),
        ({"has_btf": False, "attach_cookie_error": "Invalid argument"}, ""),
        ({"bpf_error": "No"}, "BPF programs may not be loaded (No)"),
        ({"uprobe_error": "Permission denied"}, "uprobes may not be placed (Permission denied)"),
    ],
)
def test_refusals(errors: dict[str, Any], refusal: str) -> None:
    assert dataclasses.replace(ALL, **errors).bpf_refusal == refusal


def test_this_machine() -> None:
    before = set(os.listdir("/proc/self/fd"))
    found = probe_local()
    assert set(os.listdir("/proc/self/fd")) == before
    assert found.machine == os.uname().machine
    assert found.has_btf == Path("/sys/kernel/btf/vmlinux").exists()
    if found.bpf_error == "" and found.has_btf:  # built with BTF: a kernel that has all the rest, too
        assert found.ring_buffer_error == found.probe_read_user_error == ""


def test_as_nobody() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    if Path("/proc/sys/kernel/unprivileged_bpf_disabled").read_text().strip() == "0":
        pytest.skip("unprivileged BPF is allowed here")
    code = (
        "import os\n"
        "from memleak_android.host.machine.local.capabilities import probe_local\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(probe_local().bpf_refusal)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "BPF programs may not be loaded (Operation not permitted)\n"
