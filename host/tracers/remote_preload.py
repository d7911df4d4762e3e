"""The shim on a device: in a command that is started there, or in an app that is started anew."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from memleak_android.host.device.android_app import App, launch
from memleak_android.host.device.elf_file import ELFCLASS32, MACHINE_NAMES
from memleak_android.host.device.pulled_files import PulledFiles
from memleak_android.host.device.target import Channel, Target
from memleak_android.host.device.wrap_property import WrappedApp
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.tracers.base import SessionOptions, session_lines
from memleak_android.host.tracers.prebuilt import find_binary
from memleak_android.host.wire import WIRE_VERSION, Block, BlockKind

AGENT, SHIM = "memleakd", "libmemleak.so"
_SESSION_SUFFIX = ".session"  # of the file beside the shim that names its session
_JOINED_S = 30.0
_ARCH_OF_ABI = {"arm64-v8a": "arm64", "armeabi-v7a": "arm32", "armeabi": "arm32", "x86_64": "x86_64"}


class LaunchingSession(AgentSession):
    """Starts its target once the agent listens for it. Raises TracerError where the target does not bring the shim."""

    def __init__(
        self,
        channel: Channel,
        lines: Sequence[str],
        start: Callable[[], None],
        absent: TracerError,
        put_away: Callable[[], None],
    ) -> None:
        super().__init__("preload", channel, lines, put_away=put_away)
        self._start_target = start
        self._absent = absent

    def blocks(self) -> Iterator[Block]:
        deadline, has_joined = 0.0, False
        for block in super().blocks():
            yield block
            has_joined |= block.kind == BlockKind.PROCESS
            if block.kind != BlockKind.STATUS or has_joined:
                continue
            if not deadline:
                self._start_target()
                deadline = time.monotonic() + _JOINED_S
            elif time.monotonic() > deadline:
                raise self._absent


def start_command(target: Target, options: SessionOptions, pulled: PulledFiles) -> AgentSession:
    """A native program started from the device's shell, with the rights of the shell. Raises TargetError, DeviceError."""
    if options.object or options.symbols_prefix:
        raise TracerError(
            "-O and --symbols-prefix need the bpf tracer: the shim is found by the functions' own names",
            "attach with root by --pid N",
        )
    arch = _arch_of_command(target, options.command[0], pulled)
    with ExitStack() as undo:
        deployed = undo.enter_context(
            target.deploy({name: find_binary(name, arch) for name in (AGENT, SHIM)})
        )
        lines = [*session_lines(options, WIRE_VERSION), f"shim {_quoted(deployed.paths[SHIM])}"]
        channel = target.open_agent([deployed.paths[AGENT], "preload"])
        session = AgentSession("preload", channel, lines, put_away=deployed.close)
        undo.pop_all()
    return session


def start_wrapped(target: Target, app: App, process: str, options: SessionOptions) -> AgentSession:
    """A rooted device: the app is started anew with the shim. Raises DeviceError, TracerError."""
    arch, word = app_arch(target, app), _session_word()
    with ExitStack() as undo:
        deployed = undo.enter_context(
            target.deploy({name: find_binary(name, arch) for name in (AGENT, SHIM)})
        )
        wrapped = undo.enter_context(WrappedApp(target, app, process, deployed.paths[SHIM], word))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], as_root=True)

        def put_away() -> None:
            try:
                wrapped.close()
            finally:
                deployed.close()

        absent = TracerError(
            f"{app.label} was started, but no process of it loaded the shim",
            f"see whether it honours wrap.{process}",
        )
        session = LaunchingSession(
            channel, _lines(options, word), lambda: launch(target, app), absent, put_away
        )
        undo.pop_all()
    return session


def start_run_as(target: Target, app: App, options: SessionOptions) -> AgentSession:
    """Without root: the agent runs as the app, whose own wrap.sh loads the shim out of the app's folder."""
    arch, word = app_arch(target, app), _session_word()
    with ExitStack() as undo:
        made = Path(undo.enter_context(tempfile.TemporaryDirectory())) / "session"
        made.write_text(f"{word}\n")
        files = {name: find_binary(name, arch) for name in (AGENT, SHIM)} | {SHIM + _SESSION_SUFFIX: made}
        deployed = undo.enter_context(target.deploy(files, run_as=app.package))
        channel = target.open_agent([deployed.paths[AGENT], "preload"], run_as=app.package)
        absent = TracerError(
            f"{app.label} was started, but no process of it loaded the shim",
            "put a wrap.sh into it: `memleak-android doctor --package` prints one",
        )
        start = lambda: launch(target, app)
        session = LaunchingSession(channel, _lines(options, word), start, absent, deployed.close)
        undo.pop_all()
    return session


def wrap_script(package: str) -> str:
    """lib/ABI/wrap.sh of an app (API 27, debuggable, native libraries extracted): the shim when it is there, else as ever."""
    return (
        "#!/system/bin/sh\n"
        f"for shim in /data/data/{package}/memleak-android-*/{SHIM}; do\n"
        '  [ -f "$shim" ] && LD_PRELOAD=$shim exec "$@"\n'
        "done\n"
        'exec "$@"\n'
    )


def app_arch(target: Target, app: App) -> str:
    """Of its native code; an app without any runs as the device's first choice."""
    if app.abi and app.abi not in _ARCH_OF_ABI:
        raise TargetError(
            f"{app.label} runs as {app.abi}, for which there is no shim", "use an arm or x86_64 build"
        )
    return _ARCH_OF_ABI[app.abi] if app.abi else target.arch


def _lines(options: SessionOptions, word: str) -> list[str]:
    return [*session_lines(options, WIRE_VERSION), f"await {_quoted(word)}"]


def _session_word() -> str:
    """NAME:NONCE: an abstract socket's name, and what proves that who connects belongs to this session."""
    return f"memleak-{secrets.token_hex(8)}:{secrets.randbits(63) + 1:016x}"


def _quoted(text: str) -> str:
    return quote(os.fsencode(text), safe="/:")


def _arch_of_command(target: Target, command: str, pulled: PulledFiles) -> str:
    """The shim has to be of the program's word size: its linker would start it without one of the other."""
    answer = target.run(["sh", "-c", 'command -v "$1"', "sh", command])
    place = answer.out.decode("utf-8", "surrogateescape").strip()
    if answer.code or not place.startswith("/"):
        place = command
    file = pulled.look([place])
    if file is None or not file.head.startswith(b"\x7fELF"):
        return (
            target.arch
        )  # a script: its interpreter is the device's own; what is no program the agent finds out
    machine = MACHINE_NAMES.get(int.from_bytes(file.head[18:20], "little"), "")
    if file.head[4:5] == bytes([ELFCLASS32]) and machine != "arm32":
        raise TargetError(
            f"{place} is {machine or '32-bit'} code, for which there is no shim", "use another build"
        )
    return machine or target.arch
