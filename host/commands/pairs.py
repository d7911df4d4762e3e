"""`--pairs`: from the command line's words to what a session is told of pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memleak_android.host.errors import UsageError
from memleak_android.host.pairs.schema import HEAP_SET, read_pair_sets
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.pairs.planning import SetsPlanner


def with_pairs(options: SessionOptions, given: dict[str, Any]) -> SessionOptions:
    """Raises UsageError where nothing of the files can be used, or this session cannot have pairs."""
    words = tuple(given["pairs"])
    if not set(words) - {HEAP_SET}:
        return options
    if given["tracer"] == "bcc":
        raise UsageError(
            "--pairs with --tracer bcc, which knows the allocator only",
            "use --tracer bpf, inline for functions whose code can be patched, or plt for what is called through slots",
        )
    if given["perf_events"]:
        raise UsageError("--pairs with --perf-events: pairs need the BPF ring buffer", "leave one away")
    planner = SetsPlanner(read_pair_sets(words), tuple(given.get("symbols") or ()))
    return replace(options, pairs=planner)
