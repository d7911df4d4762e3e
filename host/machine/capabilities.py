"""Capabilities of a machine for tracers: its agent tries them, with the rights of a session, never by version numbers."""

import json
from collections.abc import Mapping
from typing import Any

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.target import Target

# Requirements of the BPF tracer, by the agent's own names (`memleakd probe`).
_NEEDED = {
    "bpf": "BPF programs may not be loaded",
    "bpf_mappable_array": "its BPF has no mappable arrays (Linux 5.5)",
    "bpf_uprobe_programs": "it loads no BPF program for uprobes: SELinux refuses it, or its kernel has none",
    "uprobe_pmu": "uprobes may not be placed",
    "sideband": "mappings cannot be followed by perf events",
}


def probe_agent(target: Target, agent: str) -> Mapping[str, Any]:
    """By name whether it works; "errors": why some do not."""
    answer = target.run([agent, "probe"], as_root=target.has_root)
    try:
        found = json.loads(answer.out)
    except ValueError:
        found = None
    if answer.code or not isinstance(found, dict):
        reason = answer.complaint or f"exit code {answer.code}"
        raise TracerError(
            f"the agent does not run on {target.name}: {reason}", "run `memleak-android doctor`"
        )
    return found


def bpf_refusal(found: Mapping[str, Any]) -> str:
    """Why the BPF tracer cannot run there, "" if it can."""
    errors: Mapping[str, str] = found.get("errors", {})
    for name, reason in _NEEDED.items():
        if not found.get(name):
            return f"{reason} ({errors[name]})" if name in errors else reason
    return ""
