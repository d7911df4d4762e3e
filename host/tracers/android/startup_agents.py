"""The shim in an app of an unrooted phone from its start on, by code_cache/startup_agents (host/machine/adb/startup_agents.py)."""

from __future__ import annotations

from contextlib import ExitStack

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.adb.app import App, launch
from memleak_android.host.machine.adb.startup_agents import StartupAgent
from memleak_android.host.machine.target import Target
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.android.attach_agent import let_go
from memleak_android.host.tracers.android.wrap import (
    AGENT,
    SHIM,
    LaunchingSession,
    await_lines,
    session_word,
    shim_files,
)


def start(target: Target, options: SessionOptions, app: App, process: str, *, arch: str) -> AgentSession:
    """Restarts the app. process: the name of the process that is detached at the end. Raises DeviceError, TracerError."""
    word = session_word()
    with ExitStack() as undo:
        deployed = undo.enter_context(target.deploy(shim_files(arch), run_as=app.as_user))
        startup = undo.enter_context(StartupAgent(target, app, deployed.paths[SHIM], f"{word} mode=plt"))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], run_as=app.as_user)

        def clean_up() -> None:
            try:
                let_go(target, app, process, startup.path)
            finally:
                try:
                    startup.close()
                finally:
                    deployed.close()

        absent = TracerError(
            f"{app.label} was started, but no process of it loaded the shim from code_cache/startup_agents",
            "see its messages in `adb logcat`, or attach while it runs, without --launch",
        )
        lines = [*await_lines(options, word), "hook plt"]
        session = LaunchingSession(channel, lines, lambda: launch(target, app), absent, clean_up)
        session.name = "plt"
        session.target = {"attached": False}
        undo.pop_all()
    return session
