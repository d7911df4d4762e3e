"""`--kernel` and `--percpu`: from the command line's words to what a session is told."""

from __future__ import annotations

from typing import Any

import click

from memleak_android.host.console import Invocation
from memleak_android.host.tracers.local.kernel import KernelGroup

# Both the kernel's tables and its own bookkeeping are allocated beforehand: about 130 bytes for a block.
KERNEL_MAX_LIVE = 1_000_000
_OTHERS = (
    "launch",
    "follow",
    "pairs",
    "mmap",
    "reachability",
    "events",
    "perf_events",
    "extend_stacks",
)


def kernel_groups(invocation: Invocation, given: dict[str, Any]) -> KernelGroup:
    """No bit: the session is not about the kernel. Raises UsageError for what does not go with it."""
    groups = KernelGroup(0)
    if given["kernel"]:
        groups |= KernelGroup.SLAB | KernelGroup.PAGES
    if given["percpu"]:
        groups |= KernelGroup.PERCPU
    if not groups:
        return groups
    word = "--kernel" if given["kernel"] else "--percpu"
    if given["follow"] and invocation.command is not None:
        raise click.UsageError(
            f"{word} with --follow; leave it away, a command's children are counted with it"
        )
    if invocation.command is not None and any(given[name] for name in ("serial", "usb", "tcp")):
        raise click.UsageError(f"{word} and a command on a device; start it there and name it by --pid")
    other = next((name for name in _OTHERS if given.get(name)), "")
    if other or given["tracer"] not in ("auto", "bpf") or given["unwind"] not in ("auto", "cfi"):
        other = other or ("tracer" if given["tracer"] not in ("auto", "bpf") else "unwind")
        raise click.UsageError(f"{word} with --{other.replace('_', '-')}; leave one of them away")
    return groups
