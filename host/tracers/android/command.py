"""A program started from a device's shell, by BPF with root, else with the shim. It uses our standard streams."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.adb.program import fetch_until, find_program, loaded_objects
from memleak_android.host.machine.adb.pulled_files import PulledFiles, RemoteFile
from memleak_android.host.machine.binaries import SHIM
from memleak_android.host.machine.local.channel import USER_STDIO_LINE
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.machine.target import Channel, Relay, Target
from memleak_android.host.pairs.schema import PairRoute
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import (
    AllocatorChoice,
    PairPlan,
    PairPlanner,
    ProbedFile,
    SessionOptions,
)
from memleak_android.host.tracers.local.bpf import BpfPlan, plan_objects
from memleak_android.host.wire.blocks import Block, BlockKind, Reason
from memleak_android.host.wire.payloads import decode_end


class CommandSession(AgentSession):
    """A session whose command prints through another connection. All output arrives before the session ends."""

    def __init__(
        self, name: str, channel: Channel, lines: Sequence[str], relay: Relay, clean_up: Callable[[], None]
    ) -> None:
        super().__init__(name, channel, [*lines, USER_STDIO_LINE], clean_up=clean_up)
        self._relay = relay

    def blocks(self) -> Iterator[Block]:
        for block in super().blocks():
            if block.kind == BlockKind.END and int(decode_end(block.payload)["reason"]) == Reason.TARGET_EXIT:
                self._relay.drain()
            yield block


def find_command(target: Target, command: str, pulled: PulledFiles) -> RemoteFile | None:
    """Raises TargetError for code that neither tracer supports."""
    program = find_program(target, command, pulled)
    if program is not None and not program.is_64_bit and program.machine != "arm32":
        raise TargetError(
            f"{program.path} is {program.machine or '32-bit'} code, for which there is no shim",
            "use another build",
        )
    return program


def start_by_bpf(
    target: Target,
    options: SessionOptions,
    program: RemoteFile | None,
    pulled: PulledFiles,
    agent: str,
    clean_up: Callable[[], None],
) -> AgentSession:
    """Agent and command run as root. agent: memleakd on the device. Raises TargetError, DeviceError."""
    if program is None:
        raise _unreadable(target, options.command[0])
    plan, remark = plan_command(target, options.allocator, options.pairs, program, pulled)
    lines = [*options.bpf_lines(), *plan.lines()]
    session = _start("bpf", target, agent, lines, clean_up, as_root=True)
    session.notes = plan.notes
    session.answer_functions(plan.pairs, plan.unplaced)
    command = options.command[0]
    session.fallback = "; ".join(filter(None, (f"{command} runs as root, as the agent does", remark)))
    session.about = plan.about()
    return session


def _unreadable(target: Target, command: str) -> TargetError:
    return TargetError(f"{command} is not a readable program on {target.name}", "give its path")


def start_with_shim(
    target: Target,
    options: SessionOptions,
    program: RemoteFile | None,
    pulled: PulledFiles,
    paths: dict[str, str],
    clean_up: Callable[[], None],
) -> AgentSession:
    """Runs with the shell's rights. paths: of the agent and the shim on the device. Raises TracerError, TargetError."""
    if options.object or options.symbols_prefix:
        raise TracerError(
            "-O and --symbols-prefix need the bpf tracer: the shim is found by the functions' own names",
            "use --tracer bpf with root",
        )
    pairs = None
    if options.pairs is not None:
        if program is None:
            raise _unreadable(target, options.command[0])
        loaded, _ = loaded_objects(target, program, pulled)
        pairs = _plan_pairs(fetch_until(pulled, loaded, set(), whole=True), options.pairs, "slots")
    lines = [*options.lines(), f"shim {quote(paths[SHIM], safe='/')}", *options.pair_lines(pairs)]
    session = _start("preload", target, paths["memleakd"], lines, clean_up, as_root=False)
    session.answer_functions(pairs)
    return session


def plan_command(
    target: Target,
    choice: AllocatorChoice,
    planner: PairPlanner | None,
    program: RemoteFile,
    pulled: PulledFiles,
) -> tuple[BpfPlan, str]:
    """Plans the probes before the command runs. Returns a remark if they are a guess ("" = none).

    Raises TargetError, DeviceError.
    """
    paths, remark = loaded_objects(target, program, pulled)
    every = choice.object is not None or planner is not None
    objects = fetch_until(pulled, paths, {choice.malloc}, whole=every)
    pairs = _plan_pairs(objects, planner) if planner else None
    return plan_objects(objects, choice, pairs, is_local=False), remark


def _plan_pairs(objects: Sequence[LoadedObject], planner: PairPlanner, by: PairRoute = "probes") -> PairPlan:
    copies = {ProbedFile(0, one.path, one.path): one.open_path for one in objects}
    return planner.plan(list(copies), lambda file: copies[file], by)


def _start(
    name: str,
    target: Target,
    agent: str,
    lines: Sequence[str],
    clean_up: Callable[[], None],
    *,
    as_root: bool,
) -> CommandSession:
    """Opens the connection for the streams first: the agent waits for it, not the reverse."""
    loan = f"memleak-stdio-{secrets.token_hex(8)}"
    relay = target.relay([agent, "lend", loan], as_root=as_root)

    def end() -> None:
        try:
            relay.close()
        finally:
            clean_up()

    try:
        channel = target.open_agent([agent, "borrow", loan, name], as_root=as_root)
    except BaseException:
        relay.close()
        raise
    return CommandSession(name, channel, lines, relay, end)
