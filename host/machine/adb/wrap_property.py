"""An app whose processes start with the shim, through the property wrap.PROCESS on a rooted device.

A keeper on the device puts the shim where apps may execute but not write, sets the property, and restores both
when our connection ends. Facts: Zygote.applyInvokeWithSystemProperty (frameworks/base) prefixes a shell's command line with
wrap.PROCESS. A value has at most PROP_VALUE_MAX - 1 = 91 bytes (bionic system_properties.h), of which ours takes
at most 65.
"""

from __future__ import annotations

import secrets

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.machine.adb.keeper import OWN_FOLDER, OWN_PREFIX, Keeper, KeeperFailed
from memleak_android.host.machine.target import Target

# Apps of every user may execute files here, and only root and the system may write: no app can plant a link.
# SELinux: `/data/app(/.*)?` is apk_data_file, which appdomain may read and execute (file_contexts, app.te); a
# new file takes the label of its folder. /data/local/tmp is shell_data_file, which apps may not execute.
APPS_FOLDER = "/data/app"
LAST_SHORT_API = 25  # Android 7.1: names had at most PROP_NAME_MAX - 1 = 31 characters
_SHORT_NAME = 31
_SHIM = "m.so"

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
shim=$2/$name/{_SHIM}
cat "$3" >"$shim" && chmod 755 "$shim" || {{ away; exit 1; }}
(umask 027; printf '%s\\n' "$4" >"$shim.session") && chgrp "$5" "$shim.session" || {{ away; exit 1; }}
setprop "$1" "LD_PRELOAD=$shim"
[ "$(getprop "$1")" = "LD_PRELOAD=$shim" ] || {{ echo "setprop $1 had no effect" >&2; away; exit 1; }}
"""
_RESTORE = 'setprop "$1" "$old"\naway'


def wrap_property(process: str, api_level: int) -> str:
    """The property that the zygote reads. Names were shortened before Android 8 (the same function there).

    Processes with the same first characters then start with the shim too, but are not admitted to the session.
    """
    name = f"wrap.{process}"
    if not 0 < api_level <= LAST_SHORT_API or len(name) <= _SHORT_NAME:
        return name
    return name[:_SHORT_NAME] if name[_SHORT_NAME - 1] != "." else name[: _SHORT_NAME - 1]


class WrappedApp(Keeper):
    """While open, processes that wrap_property() maps to `name` start with the shim. Raises DeviceError.

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
        try:
            super().__init__(target, _WRAP, _RESTORE, words, as_root=True)
        except KeeperFailed as error:
            raise DeviceError(
                f"{name} could not be set on {target.name}: {error.reason}", "use --tracer bpf"
            ) from None
