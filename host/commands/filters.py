"""`--adaptive` and `--evidence-after`: which tracer can leave stacks out, and what does not go together."""

from __future__ import annotations

from typing import Any

from memleak_android.host.errors import UsageError
from memleak_android.host.tracers.local.start import TracerName

_FILTERS = {"adaptive": "--adaptive", "evidence_after": "--evidence-after"}


def tracer_for(given: dict[str, Any]) -> TracerName:
    """The tracer of the command line; `auto` is bpf where an option filters evidence. Raises UsageError."""
    tracer: TracerName = given["tracer"]
    asked = next((option for name, option in _FILTERS.items() if given[name]), "")
    if not asked:
        return tracer
    if tracer not in ("auto", "bpf"):
        raise UsageError(
            f"{asked} with --tracer {tracer}: only BPF leaves stacks out", "leave one of them away"
        )
    return "bpf"
