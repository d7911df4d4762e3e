"""The machine as the real adb client sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.emulator.machine import Machine

pytestmark = pytest.mark.emulator


def test_the_adb_server_lists_it(machine: Machine) -> None:
    listed = machine.adb("devices").stdout.decode()
    assert re.search(rf"^{machine.serial}\s+device$", listed, re.MULTILINE)


def test_shell_keeps_codes_and_streams_apart(machine: Machine) -> None:
    assert machine.shell("echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")


def test_shell_runs_as_the_shell_user(machine: Machine) -> None:
    _, identity, _ = machine.shell("id")
    assert identity.startswith("uid=2000(shell) gid=2000(shell)")
    assert "3009(readproc)" in identity and "1004(input)" in identity


def test_what_is_pushed_comes_back(machine: Machine, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(bytes(range(256)) * 4096)
    assert machine.adb("push", sent, "/data/local/tmp/sent").returncode == 0
    assert machine.adb("pull", "/data/local/tmp/sent", tmp_path / "back").returncode == 0
    assert (tmp_path / "back").read_bytes() == sent.read_bytes()
    assert machine.shell("stat -c '%U %G' /data/local/tmp/sent") == (0, "shell shell\n", "")
    assert machine.shell("rm /data/local/tmp/sent") == (0, "", "")


def test_exec_out_is_a_binary_stream(machine: Machine) -> None:
    assert machine.adb("exec-out", "printf 'a\\r\\n\\0b'").stdout == b"a\r\n\0b"


def test_a_command_that_is_not_there(machine: Machine) -> None:
    code, _, error = machine.shell("no-such-command")
    assert code == 127
    assert "no-such-command: inaccessible or not found" in error  # the words of mksh, Android's shell


def test_the_console_is_root_whatever_adb_is(machine: Machine) -> None:
    assert machine.root_shell("id -u; exit 5") == (5, "0\n")


@pytest.mark.parametrize("name", ("bpf", "uprobe", "btf"))
def test_the_kernel_has_what_the_tracers_need(machine: Machine, name: str) -> None:
    question = {
        "bpf": "cat /proc/sys/kernel/unprivileged_bpf_disabled",
        "uprobe": "cat /sys/bus/event_source/devices/uprobe/type",
        "btf": "ls /sys/kernel/btf/vmlinux",
    }[name]
    assert machine.root_shell(question)[0] == 0
