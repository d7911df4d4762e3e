"""An app whose processes load the shim at their start, through its folder code_cache/startup_agents.

Facts (frameworks/base ActivityThread.handleAttachStartupAgents, since API level 30): every file in that folder of a
debuggable app is attached as an agent before any code of the app runs, with the data folder as its options. A keeper on
the device, running as the app, adds our file and removes it when our connection ends. After a loss of power the file stays:
it starts with the app, finds no session and does nothing. The next session removes it.
"""

from __future__ import annotations

import secrets

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.adb.keeper import LIVES, Keeper, KeeperFailed
from memleak_android.host.machine.target import Target

AGENTS_FOLDER = "code_cache/startup_agents"
_FILE = "libmemleak.so"  # its mappings are recognised by this name
SESSION_FILE = "code_cache/memleak-android.session"  # device/preload/agent_entry.c

# In the app's own folder. $1: the shim, $2: the line for memleak_attach(), $3: our random word. The file is renamed into place:
# a process that starts meanwhile must not map half of it. It is copied, not linked: the cache may have another quota.
_PUT = f"""{LIVES}
made=
for old in {AGENTS_FOLDER}/*-*-{_FILE}; do
  [ -e "$old" ] || continue
  pid=${{old##*/}}; other=${{pid#*-}}; pid=${{pid%%-*}}
  ! lives "$pid" "${{other%-{_FILE}}}" || {{ echo "another session starts it" >&2; exit 1; }}
  rm -f "$old"; made=1
done
[ -d {AGENTS_FOLDER} ] || {{ mkdir -p {AGENTS_FOLDER} || exit 1; made=1; }}
name=$$-$3-{_FILE}
away() {{
  rm -f "{AGENTS_FOLDER}/$name" "code_cache/$name" {SESSION_FILE}
  [ -z "$made" ] || rmdir {AGENTS_FOLDER} 2>/dev/null
}}
(umask 077; printf '%s\\n' "$2" >{SESSION_FILE}) && cat "$1" >"code_cache/$name" && chmod 700 "code_cache/$name" &&
  mv "code_cache/$name" {AGENTS_FOLDER}/ || {{ away; exit 1; }}
answer=$PWD/{AGENTS_FOLDER}/$name
"""
_REMOVE = "away"


class StartupAgent(Keeper):
    """While open, starting processes of the app load the shim. Raises DeviceError.

    shim: its path on the device, readable by the app.
    line: for memleak_attach().
    path: of the file that the app's runtime loads.
    """

    def __init__(self, target: Target, app: App, shim: str, line: str) -> None:
        words = [shim, line, secrets.token_hex(8)]
        try:
            super().__init__(target, _PUT, _REMOVE, words, run_as=app.as_user)
        except KeeperFailed as error:
            raise DeviceError(
                f"could not copy files into {AGENTS_FOLDER} of {app.label} on {target.name}: {error.reason}",
                "attach to it while it runs, without --launch",
            ) from None
        self.path = self.answer
