"""An app whose processes are started with the shim: the property wrap.PROCESS on a rooted device, while it is open.

A keeper on the device puts the shim into the app's own folder (an app may run no code out of /data/local/tmp: SELinux
denies it shell_data_file), sets the property, and puts everything back as it was when we are gone. Facts: Zygote.applyInvokeWithSystemProperty takes
wrap.PROCESS for the beginning of a shell's command line; a value has at most PROP_VALUE_MAX - 1 = 91 bytes (bionic
system_properties.h), a name any number from Android 8 on.
"""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Self

from memleak_android.host.device.android_app import App
from memleak_android.host.device.keeper import Keeper, KeeperFailed
from memleak_android.host.device.target import Target
from memleak_android.host.errors import DeviceError

VALUE_BYTES_MAX = 91
_SHIM = "m.so"  # short: it stands in the property

# $1: property, $2: its value, $3: the app's folder, $4: ours in it, $5: the shim, $6: the session, $7: the app's uid.
_WRAP = f"""
old=$(getprop "$1")
f="$3/$4"
mkdir -m 755 "$f" || exit 1
away() {{ rm -rf "$f"; }}
cat "$5" >"$f/{_SHIM}" && chmod 755 "$f/{_SHIM}" && printf '%s\\n' "$6" >"$f/{_SHIM}.session" || {{ away; exit 1; }}
chown -R "$7:$7" "$f" || {{ away; exit 1; }}
label=$(ls -Zd "$3" 2>/dev/null); label=${{label%% *}}
case "$label" in *:*:*) chcon -R "$label" "$f" ;; esac
setprop "$1" "$2"
[ "$(getprop "$1")" = "$2" ] || {{ echo "setprop $1 had no effect" >&2; away; exit 1; }}
"""
_RESTORE = 'setprop "$1" "$old"\naway'


class WrappedApp:
    """From now on processes called `process` begin with the shim. Raises DeviceError. shim: its path on the device."""

    def __init__(self, target: Target, app: App, process: str, shim: str, session: str) -> None:
        folder = f"ml-{secrets.token_hex(3)}"
        value = f"LD_PRELOAD={app.data_dir}/{folder}/{_SHIM}"
        if len(value) > VALUE_BYTES_MAX:
            raise DeviceError(
                f"the property wrap.{process} has no room for {len(value)} characters (at most {VALUE_BYTES_MAX})",
                "use --tracer bpf, or a wrap.sh in the app",
            )
        words = [f"wrap.{process}", value, app.data_dir, folder, shim, session, str(app.uid or 0)]
        try:
            self._keeper = Keeper(target, _WRAP, _RESTORE, words, as_root=True)
        except KeeperFailed as error:
            raise DeviceError(
                f"wrap.{process} could not be set on {target.name}: {error.reason}", "use --tracer bpf"
            ) from None

    def close(self) -> None:
        """Returns when the property and the app's folder are as they were."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
