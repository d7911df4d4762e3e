"""Which way leads into an app or a process on a device, and why the better ones are closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memleak_android.host.device.android_app import App
from memleak_android.host.errors import TracerError
from memleak_android.host.tracers.choice import TracerName

RouteName = Literal["bpf", "wrap", "run-as"]
_WRAP_SH_API = 27  # wrap.sh in an APK (developer.android.com, "Wrap shell script")
_HEAPPROFD_API = 29


@dataclass(frozen=True, slots=True)
class Way:
    """One route. refusal: why it is closed, "" = open. needs: what the user has to allow, "" = nothing."""

    name: RouteName
    refusal: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """What routes depend on. bpf_refusal: by the device's own word, "" = it can. is_64_bit: the process, or the ABI of
    the app. app: None for a process named by its pid. api_level: 0 = not Android, or not told.
    """

    device: str
    has_root: bool
    bpf_refusal: str
    is_64_bit: bool
    app: App | None
    api_level: int = 0


def ways(found: Situation) -> tuple[Way, ...]:
    """All routes, the best first."""
    return (_bpf(found), _wrap(found), _run_as(found))


def choose_route(name: TracerName, found: Situation, *, may_restart: bool) -> Way:
    """The best open one. may_restart: the app may be started anew. Raises TracerError with every reason."""
    wanted = [way for way in ways(found) if name in ("auto", "bpf" if way.name == "bpf" else "preload")]
    for way in wanted:
        if not way.refusal and (may_restart or not way.needs):
            return way
    waiting = next((way for way in wanted if not way.refusal), None)
    subject = found.app.label if found.app else "the process"
    closed = "; ".join(f"{way.name}: {way.refusal}" for way in wanted if way.refusal)
    if waiting is not None:
        reason = f" ({closed})" if closed else ""
        raise TracerError(f"{subject} can be measured from its start only{reason}", waiting.needs)
    raise TracerError(f"{subject} cannot be measured on {found.device} ({closed})", advice(found))


def advice(found: Situation) -> str:
    """The way out where no route is open."""
    app = found.app
    if app is not None and app.is_profileable and not app.is_debuggable and found.api_level >= _HEAPPROFD_API:
        return f"it is profileable: use heapprofd (tools/heap_profile android -n {app.package}), or a debuggable build"
    if app is not None:
        return "use a debuggable build with the wrap.sh that `doctor --package` prints, or root the device"
    return "root the device (adb root, or su)"


def _bpf(found: Situation) -> Way:
    if not found.is_64_bit:
        return Way("bpf", "32-bit code, where the kernel places no uprobes")
    if not found.has_root:
        return Way("bpf", "no root")
    return Way("bpf", found.bpf_refusal)


def _wrap(found: Situation) -> Way:
    needs = "add --launch: the shim has to be there from the start"
    if found.app is None:
        return Way("wrap", "the shim cannot attach to a running process; name the app by --package")
    return Way("wrap", "" if found.has_root else "no root to set the wrap property", needs)


def _run_as(found: Situation) -> Way:
    needs = "add --launch, and put the wrap.sh that `doctor --package` prints into the app"
    if found.app is None:
        return Way("run-as", "only for apps")
    if found.app.run_as_refusal:
        return Way("run-as", found.app.run_as_refusal)
    if found.api_level and found.api_level < _WRAP_SH_API:
        return Way("run-as", f"wrap.sh needs API level {_WRAP_SH_API}, the device has {found.api_level}")
    return Way("run-as", "", needs)
