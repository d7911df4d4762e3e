"""Which way leads into an app or a process on a device, and why the better ones are closed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.tracers.local.choice import TracerName

RouteName = Literal["bpf", "wrap", "run-as", "startup", "agent", "ptrace"]
_TRACERS: dict[RouteName, tuple[TracerName, ...]] = {
    "bpf": ("auto", "bpf"),
    "wrap": ("auto", "preload"),
    "run-as": ("auto", "preload"),
    "startup": ("auto", "plt"),
    "agent": ("auto", "plt"),
    "ptrace": ("auto", "plt", "inline"),
}
_NO_PAIRS = "it does not carry --pairs"
_WRAP_SH_API = 27  # wrap.sh in an APK (developer.android.com, "Wrap shell script")
_HEAPPROFD_API = 29
_ATTACH_AGENT_API = 26  # ActivityManagerShellCommand, "attach-agent"
_STARTUP_AGENTS_API = 30  # ActivityThread.handleAttachStartupAgents


@dataclass(frozen=True, slots=True)
class Way:
    """One route. refusal: why it is closed, "" = open. needs: what the user has to allow, "" = nothing."""

    name: RouteName
    refusal: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """What routes depend on. bpf_refusal: by the device's own word, "" = it can. is_64_bit: the process, or the ABI of
    the app. app: None for a process named by its pid. api_level: 0 = not Android, or not told. lacks_wrap_script: the
    app is known to carry no wrap.sh.
    """

    device: str
    has_root: bool
    bpf_refusal: str
    is_64_bit: bool
    app: App | None
    api_level: int = 0
    lacks_wrap_script: bool = False


def ways(found: Situation) -> tuple[Way, ...]:
    """All routes, the best first."""
    return (bpf_way(found), _wrap(found), _run_as(found), _startup(found), _agent(found), _ptrace(found))


def choose_route(name: TracerName, found: Situation, *, may_restart: bool, with_pairs: bool = False) -> Way:
    """The best open one. may_restart: the app may be started anew. with_pairs: it has to carry those of --pairs.
    Raises TracerError with every reason.
    """
    wanted = [
        way
        if not with_pairs or _carries_pairs(way, found)
        else replace(way, refusal=way.refusal or _NO_PAIRS)
        for way in ways(found)
        if name in _TRACERS[way.name]
    ]
    for way in wanted:
        if not way.refusal and (may_restart or not way.needs):
            return way
    waiting = next((way for way in wanted if not way.refusal), None)
    subject = found.app.label if found.app else "the process"
    closed = "; ".join(f"{way.name}: {way.refusal}" for way in wanted if way.refusal)
    if waiting is not None:
        reason = f" ({closed})" if closed else ""
        raise TracerError(f"{subject} can be measured from its start only{reason}", waiting.needs)
    way_out = _another_tracer(name, found) or advice(found)
    raise TracerError(f"{subject} cannot be measured on {found.device} ({closed})", way_out)


def _carries_pairs(way: Way, found: Situation) -> bool:
    """Which functions a process has is looked up in its files: not before it runs, nor in the name of an app."""
    return way.name == "bpf" or (way.name == "ptrace" and found.app is None)


def _another_tracer(name: TracerName, found: Situation) -> str:
    """Of the routes that the chosen tracer shuts out the best one that is open, "" = none."""
    for way in ways(found):
        if name not in _TRACERS[way.name] and not way.refusal:
            needs = f" ({way.needs})" if way.needs else ""
            return f"--tracer {_TRACERS[way.name][1]} is open{needs}"
    return ""


def advice(found: Situation) -> str:
    """The way out where no route is open."""
    app = found.app
    if app is not None and app.is_profileable and not app.is_debuggable and found.api_level >= _HEAPPROFD_API:
        return f"it is profileable: use heapprofd (tools/heap_profile android -n {app.package}), or a debuggable build"
    if app is not None:
        return "use a debuggable build with the wrap.sh that `doctor --package` prints, or root the device"
    return "root the device (adb root, or su)"


def bpf_way(found: Situation) -> Way:
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
    if found.lacks_wrap_script:
        return Way("run-as", "the app carries no wrap.sh (`doctor --package` prints one)")
    return Way("run-as", "", needs)


def _startup(found: Situation) -> Way:
    """The runtime loads the shim into a process that starts, before the app's own code."""
    refusal = _runtime_refusal(found, "startup_agents", _STARTUP_AGENTS_API)
    return Way("startup", refusal, "add --launch: a process loads it when it starts")


def _agent(found: Situation) -> Way:
    """The system has the app load the shim while it runs."""
    return Way("agent", _runtime_refusal(found, "attach-agent", _ATTACH_AGENT_API))


def _runtime_refusal(found: Situation, what: str, api_level: int) -> str:
    """Why the runtime does not load the shim as an agent, "" = it does. api_level: the first that has `what`."""
    if found.app is None:
        return "only for apps"
    if not found.is_64_bit:
        return "32-bit code, which has not been tried"
    if found.app.run_as_refusal:
        return found.app.run_as_refusal
    if found.api_level < api_level:
        return f"{what} needs API level {api_level}, the device has {found.api_level}"
    return ""


def _ptrace(found: Situation) -> Way:
    """A running process is entered: an app's by its own user, which only run-as gives us, and out of its own folder."""
    if not found.is_64_bit:
        return Way("ptrace", "32-bit code, which a 64-bit agent does not enter")
    return Way("ptrace", found.app.run_as_refusal if found.app else "")
