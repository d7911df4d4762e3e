"""An app whose processes are started with the shim: the property wrap.PROCESS on a rooted device, while it is open.

A keeper on the device puts the shim into the app's own folder (an app may run no code out of /data/local/tmp: SELinux
denies it shell_data_file), sets the property, waits for the end of its input, and puts everything back as it was. adbd
closes that input when the connection ends, for whatever reason. Facts: Zygote.applyInvokeWithSystemProperty takes
wrap.PROCESS for the beginning of a shell's command line; a value has at most PROP_VALUE_MAX - 1 = 91 bytes (bionic
system_properties.h), a name any number from Android 8 on.
"""

from __future__ import annotations

import secrets
import time
from types import TracebackType
from typing import Self

from memleak_android.host.device.android_app import App
from memleak_android.host.device.target import Target
from memleak_android.host.errors import DeviceError

VALUE_BYTES_MAX = 91
_READY_S = 15.0
_RESTORED_S = 5.0
_SHIM = "m.so"  # short: it stands in the property

# $1: property, $2: its value, $3: the app's folder, $4: ours in it, $5: the shim, $6: the session, $7: the app's uid.
_KEEPER = f"""
trap '' HUP INT TERM PIPE
umask 022
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
echo ready
cat >/dev/null
setprop "$1" "$old"
away
"""


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
        self._target = target
        self._keeper = target.open_agent(["sh", "-c", _KEEPER, "sh", *words], as_root=True)
        try:
            self._await_ready(f"wrap.{process}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Returns when the property and the app's folder are as they were."""
        self._keeper.close(_RESTORED_S, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_ready(self, name: str) -> None:
        said, deadline = bytearray(), time.monotonic() + _READY_S
        while time.monotonic() < deadline and len(said) < 1 << 16:
            piece = self._keeper.exchange(bytearray(), 0.1)
            said += piece or b""
            if b"ready" in said:
                return
            if piece is None:
                break
        reason = self._keeper.last_words() or "the device does not answer"
        raise DeviceError(f"{name} could not be set on {self._target.name}: {reason}", "use --tracer bpf")
