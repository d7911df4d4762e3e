"""Temporary changes on a device, undone by a keeper process there: files, a startup agent, a wrap property.

The keeper is a shell that makes the change, waits for the end of its input, and undoes the change. adbd closes that input when
the connection ends for any reason: close(), an error, Ctrl-C, SIGKILL of this program, an unplugged cable, a restart of
adbd (adbd also sends SIGHUP, which the keeper ignores). Only a device that loses its power undoes nothing.
"""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.target import AppUser, Target

_READY_S = 15.0
_UNDONE_S = 5.0
_SAID_BYTES_MAX = 1 << 16
_READY = re.compile(rb"(?:^|\n)ready ([^\r\n]*)\r?\n")


# Lines for `do`. They make a folder of ours in the current one and set `name` to its name. `word` holds 16 random
# hexadecimal digits, also among the keeper's arguments: its command line identifies it (by tr: toybox's grep stops
# at a NUL). The folder's name contains its process id. Folders whose keeper has ended are removed. Other users may
# pass through the folder (the app opens the shim in it) but not list it.
OWN_PREFIX = "memleak-android"
LIVES = """
lives() { { tr '\\0' ' ' <"/proc/$1/cmdline" | grep -q "$2"; } 2>/dev/null; } # a keeper, by its pid and its word
"""
OWN_FOLDER = f"""{LIVES}
for old in {OWN_PREFIX}-*-*; do
  [ -d "$old" ] || continue
  pid=${{old#{OWN_PREFIX}-}}; other=${{pid#*-}}; pid=${{pid%%-*}}
  lives "$pid" "$other" || rm -rf "$old"
done
name={OWN_PREFIX}-$$-$word
mkdir -m 711 "$name" || exit 1
"""

SHELL_FOLDER = "/data/local/tmp"  # the user shell may write and execute here; adbd names it in TMPDIR
_COPY_S = 120.0

# $1: "" = not in the start folder of run-as, which is the app's. $2: our random word.
_MAKE = f"""
[ -n "$1" ] || cd "${{TMPDIR:-{SHELL_FOLDER}}}" || exit 1
word=$2
{OWN_FOLDER}
answer=$PWD/$name
"""
_REMOVE = 'rm -rf "$name"'
_COPY = 'cat >"$1" && chmod 755 "$1" && wc -c <"$1"'

AGENTS_FOLDER = "code_cache/startup_agents"
_AGENT_FILE = "libmemleak.so"  # its mappings are recognised by this name
SESSION_FILE = "code_cache/memleak-android.session"  # device/preload/agent_entry.c

# In the app's own folder. $1: the shim, $2: the line for memleak_attach(), $3: our random word. The file is renamed into place:
# a process that starts meanwhile must not map half of it. It is copied, not linked: the cache may have another quota.
_PUT = f"""{LIVES}
made=
for old in {AGENTS_FOLDER}/*-*-{_AGENT_FILE}; do
  [ -e "$old" ] || continue
  pid=${{old##*/}}; other=${{pid#*-}}; pid=${{pid%%-*}}
  ! lives "$pid" "${{other%-{_AGENT_FILE}}}" || {{ echo "another session starts it" >&2; exit 1; }}
  rm -f "$old"; made=1
done
[ -d {AGENTS_FOLDER} ] || {{ mkdir -p {AGENTS_FOLDER} || exit 1; made=1; }}
name=$$-$3-{_AGENT_FILE}
away() {{
  rm -f "{AGENTS_FOLDER}/$name" "code_cache/$name" {SESSION_FILE}
  [ -z "$made" ] || rmdir {AGENTS_FOLDER} 2>/dev/null
}}
(umask 077; printf '%s\\n' "$2" >{SESSION_FILE}) && cat "$1" >"code_cache/$name" && chmod 700 "code_cache/$name" &&
  mv "code_cache/$name" {AGENTS_FOLDER}/ || {{ away; exit 1; }}
answer=$PWD/{AGENTS_FOLDER}/$name
"""

# Apps of every user may execute files here, and only root and the system may write: no app can plant a link.
# SELinux: `/data/app(/.*)?` is apk_data_file, which appdomain may read and execute (file_contexts, app.te); a
# new file takes the label of its folder. /data/local/tmp is shell_data_file, which apps may not execute.
APPS_FOLDER = "/data/app"
LAST_SHORT_API = 25  # Android 7.1: names had at most PROP_NAME_MAX - 1 = 31 characters
_SHORT_NAME = 31
_WRAP_SHIM = "m.so"

# $1: property, $2: the apps' folder, $3: the shim, $4: the session, $5: the app's group, $6: our random word. Other groups
# must not read the session file: its nonce admits a process to the session.
_WRAP = f"""
cd "$2" || exit 1
word=$6
{OWN_FOLDER}
away() {{ rm -rf "$name"; }}
old=$(getprop "$1")
case "$old" in "LD_PRELOAD=$2/{OWN_PREFIX}-"*)
  other=${{old#LD_PRELOAD=}}
  [ ! -e "${{other%/*}}" ] || {{ echo "another session uses it" >&2; away; exit 1; }}
  old= ;;
esac
shim=$2/$name/{_WRAP_SHIM}
cat "$3" >"$shim" && chmod 755 "$shim" || {{ away; exit 1; }}
(umask 027; printf '%s\\n' "$4" >"$shim.session") && chgrp "$5" "$shim.session" || {{ away; exit 1; }}
setprop "$1" "LD_PRELOAD=$shim"
[ "$(getprop "$1")" = "LD_PRELOAD=$shim" ] || {{ echo "setprop $1 had no effect" >&2; away; exit 1; }}
"""
_RESTORE = 'setprop "$1" "$old"\naway'


class Keeper:
    """Makes the change in its constructor and undoes it at close().

    do: shell lines that make the change, with `words` as $1, $2 …; on failure they undo their work and exit.
    undo: the lines that undo the change.
    failure, hint: for the DeviceError if the change cannot be made: what could not be done, and the way out.
    answer: the variable `answer` as `do` set it.
    """

    def __init__(
        self,
        target: Target,
        do: str,
        undo: str,
        words: Sequence[str],
        failure: str,
        hint: str,
        *,
        as_root: bool = False,
        run_as: AppUser | None = None,
    ) -> None:
        script = (
            f"trap '' HUP INT TERM PIPE\numask 022\n{do}\necho \"ready $answer\"\ncat >/dev/null\n{undo}\n"
        )
        self._channel = target.open_agent(["sh", "-c", script, "sh", *words], as_root=as_root, run_as=run_as)
        try:
            answer, reason = self._await_answer()
            if answer is None:
                raise DeviceError(f"{failure} on {target.name}: {reason}", hint)
            self.answer = answer
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Returns when the change is undone, or soon if the device no longer answers: the keeper undoes it anyway."""
        self._channel.close(_UNDONE_S, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_answer(self) -> tuple[str | None, str]:
        """The answer, or None and the last line of the failed command's output."""
        said, deadline = bytearray(), time.monotonic() + _READY_S
        while time.monotonic() < deadline and len(said) < _SAID_BYTES_MAX:
            piece = self._channel.exchange(bytearray(), 0.1)
            said += piece or b""
            if found := _READY.search(said):
                return found[1].decode("utf-8", "surrogateescape"), ""
            if piece is None:
                return None, self._channel.last_words() or self._channel.end_text()
        return None, self._channel.last_words() or "it does not answer"


class AdbDeployment(Keeper):
    """Implements Deployment; close() removes the folder. Raises DeviceError if copying fails (no room, not allowed)."""

    def __init__(self, device: Target, files: Mapping[str, Path], run_as: AppUser | None = None) -> None:
        self._device, self._run_as = device, run_as
        words = [run_as.package if run_as else "", secrets.token_hex(8)]
        folder = f"the folder of {run_as.package}" if run_as else SHELL_FOLDER
        failure = f"could not copy files into {folder}"
        super().__init__(device, _MAKE, _REMOVE, words, failure, "make room there", run_as=run_as)
        self.folder = self.answer
        try:
            self.paths: Mapping[str, str] = {name: self._copy(name, path) for name, path in files.items()}
        except BaseException:
            self.close()
            raise

    def _copy(self, name: str, path: Path) -> str:
        there, data = f"{self.folder}/{name}", path.read_bytes()
        answer = self._device.run(
            ["sh", "-c", _COPY, "sh", there], run_as=self._run_as, stdin=data, timeout_s=_COPY_S
        )
        if answer.code or answer.out.split() != [str(len(data)).encode()]:
            reason = answer.complaint.rpartition(": ")[2] or f"{one_line(answer.out.decode())} bytes arrived"
            raise DeviceError(
                f"{name} could not be copied to {self._device.name}: {reason}", "make room on the device"
            )
        return there


class StartupAgent(Keeper):
    """While open, starting processes of the app load the shim, through its folder code_cache/startup_agents. Raises DeviceError.

    Facts (frameworks/base ActivityThread.handleAttachStartupAgents, since API level 30): every file in that folder of a
    debuggable app is attached as an agent before any code of the app runs, with the data folder as its options. The keeper
    runs as the app. After a loss of power the file stays: it starts with the app, finds no session and does nothing. The next
    session removes it.

    shim: its path on the device, readable by the app.
    line: for memleak_attach().
    path: of the file that the app's runtime loads.
    """

    def __init__(self, target: Target, app: App, shim: str, line: str) -> None:
        words = [shim, line, secrets.token_hex(8)]
        failure = f"could not copy files into {AGENTS_FOLDER} of {app.label}"
        hint = "attach to it while it runs, without --launch"
        super().__init__(target, _PUT, "away", words, failure, hint, run_as=app.as_user)
        self.path = self.answer


def wrap_property(process: str, api_level: int) -> str:
    """The property that the zygote reads. Names were shortened before Android 8 (the same function there).

    Processes with the same first characters then start with the shim too, but are not admitted to the session.
    """
    name = f"wrap.{process}"
    if not 0 < api_level <= LAST_SHORT_API or len(name) <= _SHORT_NAME:
        return name
    return name[:_SHORT_NAME] if name[_SHORT_NAME - 1] != "." else name[: _SHORT_NAME - 1]


class WrappedApp(Keeper):
    """While open, processes that wrap_property() maps to `name` start with the shim, on a rooted device. Raises DeviceError.

    The keeper puts the shim where apps may execute but not write, and sets the property. Facts:
    Zygote.applyInvokeWithSystemProperty (frameworks/base) prefixes a shell's command line with wrap.PROCESS. A value has at
    most PROP_VALUE_MAX - 1 = 91 bytes (bionic system_properties.h), of which ours takes at most 65.

    name: of the property.
    shim: its path on the device.
    folder: see APPS_FOLDER.
    """

    def __init__(
        self, target: Target, app: App, name: str, shim: str, session: str, folder: str = APPS_FOLDER
    ) -> None:
        if app.uid is None:
            raise DeviceError(f"{target.name} does not report the uid of {app.package}", "use --tracer bpf")
        words = [name, folder, shim, session, str(app.uid), secrets.token_hex(8)]
        failure = f"{name} could not be set"
        super().__init__(target, _WRAP, _RESTORE, words, failure, "use --tracer bpf", as_root=True)
