"""Starts the agent of a snoop session on this machine."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.snoop.agent_lines import SnoopOptions, snoop_lines
from memleak_android.host.snoop.placing import SnoopPlan
from memleak_android.host.tracers.agent.session import AgentSession


def start_local(options: SnoopOptions, plan: SnoopPlan) -> AgentSession:
    """Starts the agent. Raises TracerError. Placing and removing many probes takes minutes, hence the long silence_s."""
    agent = find_binary("memleakd", local_arch())
    channel = LocalChannel([str(agent), "snoop"], give_stdio=bool(options.command))
    lines = snoop_lines(options, plan) + ([USER_STDIO_LINE] if options.command else [])
    return AgentSession("snoop", channel, lines, silence_s=300)


def process_names(pids: Sequence[int]) -> dict[int, str]:
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return found
