"""The shim in an app that is restarted on a device."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.adb.app import App, launch
from memleak_android.host.machine.adb.facts import api_level
from memleak_android.host.machine.adb.keeper import WrappedApp, wrap_property
from memleak_android.host.machine.binaries import AGENT, SHIM, find_binary
from memleak_android.host.machine.target import Channel, Target
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.wire.blocks import Block, BlockKind
from memleak_android.unwind.file_writing import replacing, temporary_folder

_SESSION_SUFFIX = ".session"  # of the session file beside the shim
JOINED_S = 30.0
_ARCH_OF_ABI = {"arm64-v8a": "arm64", "armeabi-v7a": "arm32", "armeabi": "arm32", "x86_64": "x86_64"}


class LaunchingSession(AgentSession):
    """Starts its target after the agent listens. Raises TracerError if the target does not join within joined_s."""

    def __init__(
        self,
        channel: Channel,
        lines: Sequence[str],
        start: Callable[[], None],
        absent: TracerError,
        clean_up: Callable[[], None],
        joined_s: float = JOINED_S,
    ) -> None:
        super().__init__("preload", channel, lines, clean_up=clean_up, joins=True)
        self.answer_functions(None)
        self._start_target = start
        self._absent = absent
        self._joined_s = joined_s

    def blocks(self) -> Iterator[Block]:
        deadline = 0.0
        for block in super().blocks():
            yield block
            if block.kind != BlockKind.STATUS or self.has_begun:
                continue
            if not deadline:
                self._start_target()
                deadline = time.monotonic() + self._joined_s
            elif time.monotonic() > deadline:
                raise self._absent


def start_wrapped(target: Target, app: App, process: str, lines: list[str]) -> AgentSession:
    """On a rooted device: restarts the app with the shim. Raises DeviceError, TracerError."""
    arch, word = app_arch(target, app), session_word()
    with ExitStack() as undo:
        deployed = undo.enter_context(target.deploy(shim_files(arch)))
        name = wrap_property(process, api_level(target))
        undo.enter_context(WrappedApp(target, app, name, deployed.paths[SHIM], word))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], as_root=True)
        absent = TracerError(
            f"{app.label} was started, but no process of it loaded the shim", f"see whether it honours {name}"
        )
        lines, begin = await_lines(lines, word), lambda: launch(target, app)
        session = LaunchingSession(channel, lines, begin, absent, undo.pop_all().close)
    return session


def start_run_as(target: Target, app: App, lines: list[str]) -> AgentSession:
    """Without root: the agent runs as the app, whose own wrap.sh loads the shim from the app's folder."""
    arch, word = app_arch(target, app), session_word()
    with ExitStack() as undo:
        made = Path(undo.enter_context(temporary_folder("memleak-session-"))) / "session"
        with replacing(made) as file:
            file.write(f"{word}\n".encode())
        files = shim_files(arch) | {SHIM + _SESSION_SUFFIX: made}
        deployed = undo.enter_context(target.deploy(files, run_as=app.as_user))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], run_as=app.as_user)
        absent = TracerError(
            f"{app.label} was started, but no process of it loaded the shim",
            "put a wrap.sh into it: `memleak-android doctor --package` prints one",
        )
        start = lambda: launch(target, app)
        session = LaunchingSession(channel, await_lines(lines, word), start, absent, deployed.close)
        undo.pop_all()
    return session


def wrap_script(package: str) -> str:
    """lib/ABI/wrap.sh of an app (API 27, debuggable, native libraries extracted). It loads the shim if that is present."""
    return (
        "#!/system/bin/sh\n"
        "user=$(($(id -u) / 100000))\n"
        f"for shim in /data/data/{package}/memleak-android-*/{SHIM} /data/user/$user/{package}/memleak-android-*/{SHIM}; do\n"
        '  [ -f "$shim" ] && LD_PRELOAD=$shim exec "$@"\n'
        "done\n"
        'exec "$@"\n'
    )


def app_arch(target: Target, app: App) -> str:
    """Architecture of the app's native code; an app without any runs as the device's first choice."""
    if app.abi and app.abi not in _ARCH_OF_ABI:
        raise TargetError(
            f"{app.label} runs as {app.abi}, for which there is no shim", "use an arm or x86_64 build"
        )
    return _ARCH_OF_ABI[app.abi] if app.abi else target.arch


def await_lines(lines: list[str], word: str) -> list[str]:
    """Lines of a session that awaits its processes. lines: of its options."""
    return [*lines, f"await {quote(word, safe='/:')}"]


def shim_files(arch: str) -> dict[str, Path]:
    return {name: find_binary(name, arch) for name in (AGENT, SHIM)}


def session_word() -> str:
    """NAME:NONCE: an abstract socket's name, and the proof that a client belongs to this session."""
    return f"memleak-{secrets.token_hex(8)}:{secrets.token_hex(16)}"
