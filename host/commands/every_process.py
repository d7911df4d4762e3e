"""`--all`: what does not go with it."""

from __future__ import annotations

from typing import Any

import click

from memleak_android.host.console import Invocation

_OTHERS = (
    "pid",
    "package",
    "serial",
    "usb",
    "tcp",
    "follow",
    "kernel",
    "percpu",
    "pairs",
    "mmap",
    "reachability",
    "adaptive",
    "evidence_after",
    "extend_stacks",
    "perf_events",
    "object_",
    "symbols_prefix",
)


def refuse_beside_all(invocation: Invocation, given: dict[str, Any]) -> None:
    """Raises UsageError."""
    if not given["every_process"]:
        return
    if invocation.command is not None:
        raise click.UsageError("--all and a command; --all is every process of this machine")
    other = next((name for name in _OTHERS if given.get(name)), "")
    if other or given["tracer"] not in ("auto", "bpf"):
        word = (other or "tracer").rstrip("_").replace("_", "-")
        raise click.UsageError(f"--all with --{word}; leave one of them away")
