"""An app whose processes load the shim when they start: a file in its code_cache/startup_agents, while it is open.

Facts (frameworks/base ActivityThread.handleAttachStartupAgents, from API level 30 on): every file in that folder of a
debuggable app is attached as an agent before any code of the app runs, with the data folder as its options. A keeper on
the device, which is the app by run-as, puts ours there and takes it away when we are gone. What a device that lost its
power has kept starts with the app, finds no session and does nothing; our next visit removes it.
"""

from __future__ import annotations

import secrets

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.adb.keeper import LIVES, Keeper, KeeperFailed
from memleak_android.host.machine.target import Target

AGENTS_FOLDER = "code_cache/startup_agents"
_FILE = "libmemleak.so"  # the name by which its mappings are known
SESSION_FILE = "code_cache/memleak-android.session"  # device/preload/agent_entry.c

# In the app's own folder. $1: the shim, $2: the line for memleak_attach(), $3: our random word. The file is made elsewhere and
# renamed: a process that starts meanwhile must not map half of it. Copied, not linked: the cache may have another quota.
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
    """From now on processes of the app that start load the shim. Raises DeviceError.

    shim: its path on the device, readable by the app. line: what it is to join. path: what the app's runtime loads.
    """

    def __init__(self, target: Target, app: App, shim: str, line: str) -> None:
        words = [shim, line, secrets.token_hex(8)]
        try:
            super().__init__(target, _PUT, _REMOVE, words, run_as=app.as_user)
        except KeeperFailed as error:
            raise DeviceError(
                f"nothing can be put into {AGENTS_FOLDER} of {app.label} on {target.name}: {error.reason}",
                "attach to it while it runs, without --launch",
            ) from None
        self.path = self.answer
