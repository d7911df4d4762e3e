"""The shim as an agent of Android's runtime: `cmd activity attach-agent` makes a debuggable app load it, without root.

The entry is Agent_OnAttach() (device/preload/agent_entry.c). The shim must be in the app's own folder, since an app may not
load code from /data/local/tmp. Rules: frameworks/base ActivityManagerService.attachAgent, art/runtime/ti/agent.cc.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain

from memleak_android.host.console import one_line
from memleak_android.host.errors import ConnectionCut, DeviceError, TracerError
from memleak_android.host.machine.adb.app import App, launch
from memleak_android.host.machine.adb.keeper import StartupAgent
from memleak_android.host.machine.binaries import AGENT, SHIM
from memleak_android.host.machine.target import Target
from memleak_android.host.tracers.agent.session import AgentSession, reported_error
from memleak_android.host.tracers.android.wrap import (
    LaunchingSession,
    await_lines,
    session_word,
    shim_files,
)
from memleak_android.host.wire.blocks import Block, BlockKind
from memleak_android.host.wire.payloads import decode_error

_ANSWER_S = 30.0
JOINED_S = 10.0  # the app's main thread loads it; after 5 s without progress the system calls it hung (ANR)


class JoinedSession(LaunchingSession):
    """A session that either joins its target or fails, so that another route can be tried."""

    _blocks: Iterator[Block]

    def join(self) -> None:
        """Returns after a process has joined. Raises TracerError or TargetError otherwise, and leaves nothing behind."""
        held: list[Block] = []
        blocks = super().blocks()
        try:
            for block in blocks:
                held.append(block)
                if block.kind == BlockKind.ERROR:
                    raise reported_error(*decode_error(block.payload))
                if block.kind == BlockKind.PROCESS:
                    self._blocks = chain(held, blocks)
                    return
            raise self._absent
        except BaseException:
            self.close()
            raise

    def blocks(self) -> Iterator[Block]:
        """All blocks, including those before join() returned."""
        yield from self._blocks


def start(target: Target, lines: list[str], app: App, process: str, *, arch: str) -> AgentSession:
    """lines: of the options. process: the name of a running process of the app. Returns after it has loaded the shim.

    Raises DeviceError, TracerError, TargetError with the system's reason.
    """
    word = session_word()
    with ExitStack() as undo:
        deployed = undo.enter_context(target.deploy(shim_files(arch), run_as=app.as_user))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], run_as=app.as_user)
        shim = deployed.paths[SHIM]
        lines = [*await_lines(lines, word), "hook plt"]
        absent = TracerError(
            f"{app.label} did not load the shim within {JOINED_S:g} s", "see its messages in `adb logcat`"
        )
        begin = lambda: _attach_agent(target, app, process, f"{shim}={word} mode=plt")
        undo.callback(let_go, target, app, process, shim)  # restores the slots; the removed file stays mapped
        session = JoinedSession(channel, lines, begin, absent, undo.pop_all().close, JOINED_S)
        session.name = "plt"
    session.join()
    return session


def let_go(target: Target, app: App, process: str, shim: str) -> None:
    """Makes the process detach. Failures are ignored: a shim without its agent disarms itself."""
    with suppress(TracerError, DeviceError):
        _attach_agent(target, app, process, f"{shim}=detach")


def _attach_agent(target: Target, app: App, process: str, agent: str) -> None:
    refusal = _refusal(target, ["cmd", "activity", "attach-agent", process, agent])
    if refusal:
        raise TracerError(
            f"{app.label} could not load the shim as an agent: {refusal}",
            "use --launch, --tracer inline (by ptrace), or root",
        )


def _refusal(target: Target, argv: list[str]) -> str:
    """The system's message, "" on success. Raises ConnectionCut."""
    try:
        done = target.run(argv, timeout_s=_ANSWER_S)
    except ConnectionCut:
        raise
    except DeviceError as error:
        return error.message
    said = one_line((done.out + done.err).decode("utf-8", "replace").strip())
    if done.code or "Exception" in said or "Unknown command" in said:
        return said.rpartition("Exception: ")[2] or f"exit code {done.code}"
    return ""


def start_at_launch(target: Target, lines: list[str], app: App, process: str, *, arch: str) -> AgentSession:
    """Restarts an app of an unrooted phone, with the shim from its start on by code_cache/startup_agents (adb/keeper.py).

    process: the name of the process that is detached at the end. Raises DeviceError, TracerError.
    """
    word = session_word()
    with ExitStack() as undo:
        deployed = undo.enter_context(target.deploy(shim_files(arch), run_as=app.as_user))
        startup = undo.enter_context(StartupAgent(target, app, deployed.paths[SHIM], f"{word} mode=plt"))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], run_as=app.as_user)
        absent = TracerError(
            f"{app.label} was started, but no process of it loaded the shim from code_cache/startup_agents",
            "see its messages in `adb logcat`, or attach while it runs, without --launch",
        )
        lines = [*await_lines(lines, word), "hook plt"]
        undo.callback(let_go, target, app, process, startup.path)
        begin = lambda: launch(target, app)
        session = LaunchingSession(channel, lines, begin, absent, undo.pop_all().close)
        session.name = "plt"
        session.target = {"attached": False}
    return session
