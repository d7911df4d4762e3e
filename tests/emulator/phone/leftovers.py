"""Traces of a session on a device that can be seen from outside."""

from collections import Counter

from tests.emulator.phone.machine import Machine
from tests.support.attaching import until

GONE_SECONDS = 10.0  # programs take an emulated processor their time

# Files in every folder that we may write to, and pinned BPF objects; properties that are set (one that was set is empty
# afterwards: Android deletes none); our processes, by their arguments (the shell that is a wrapped app's parent ends
# with the app); what BPF and perf hold open in any process, and probes with names; sockets with names. The patterns do
# not match their own command lines.
LOOK = r"""
for file in /data/local/tmp/* /data/app/* /data/data/*/* /sys/fs/bpf/*; do echo "file $file"; done
getprop | grep '^\[wrap.*: \[[^]]'
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -E '[m]emleakd|[m]emleak-android' | grep -v app_process
ls -l /proc/[0-9]*/fd 2>/dev/null | grep -oE 'anon_inode:(bpf|.perf)[^ ]*'
cat /sys/kernel/tracing/uprobe_events
grep -o '@.*memleak.*' /proc/net/unix
"""


def traces(machine: Machine) -> Counter[str]:
    """One line for each thing found, and how often."""
    seen = Counter(machine.root_shell(LOOK)[1].splitlines())
    forwards = machine.adb("forward", "--list").stdout.decode().split("\n")
    return seen + Counter(f"forward {line}" for line in forwards if line)


def check_nothing_left(machine: Machine, before: Counter[str]) -> None:
    """Fails where there is more than before the session, and it does not go away by itself within seconds."""
    assert until(lambda: not traces(machine) - before, GONE_SECONDS), traces(machine) - before
