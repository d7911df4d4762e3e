"""Routes into an app or a process on a device, and why the better ones are closed."""

from dataclasses import dataclass, replace
from typing import Literal

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.adb.app import App
from memleak_android.host.tracers.local.start import TracerName

RouteName = Literal["bpf", "wrap", "run-as", "startup", "agent", "ptrace"]
_TRACERS: dict[RouteName, tuple[TracerName, ...]] = {
    "bpf": ("auto", "bpf"),
    "wrap": ("auto", "preload"),
    "run-as": ("auto", "preload"),
    "startup": ("auto", "plt"),
    "agent": ("auto", "plt"),
    "ptrace": ("auto", "plt", "inline"),
}
_NO_PAIRS = "it does not support --pairs"
_WRAP_SH_API = 27  # wrap.sh in an APK (developer.android.com, "Wrap shell script")
_HEAPPROFD_API = 29
_ATTACH_AGENT_API = 26  # ActivityManagerShellCommand, "attach-agent"
_STARTUP_AGENTS_API = 30  # ActivityThread.handleAttachStartupAgents


@dataclass(frozen=True, slots=True)
class Route:
    """One route. refusal: why it is closed, "" = open. needs: what the user must allow, "" = nothing."""

    name: RouteName
    refusal: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """The conditions for routes.

    bpf_refusal: the device's reason, "" = BPF works.
    is_64_bit: the process, or the ABI of the app.
    app: None for a process named by its pid.
    api_level: 0 = not Android, or unknown.
    lacks_wrap_script: the app is known to have no wrap.sh.
    """

    device: str
    has_root: bool
    bpf_refusal: str
    is_64_bit: bool
    app: App | None
    api_level: int = 0
    lacks_wrap_script: bool = False


def routes(found: Situation) -> tuple[Route, ...]:
    """All routes, best first."""
    return (bpf_route(found), _wrap(found), _run_as(found), _startup(found), _agent(found), _ptrace(found))


def choose_route(name: TracerName, found: Situation, *, may_restart: bool, with_pairs: bool = False) -> Route:
    """The best open route.

    may_restart: the app may be restarted.
    with_pairs: the route must support --pairs.
    Raises TracerError with every reason.
    """
    wanted = [
        route
        if not with_pairs or _carries_pairs(route, found)
        else replace(route, refusal=route.refusal or _NO_PAIRS)
        for route in routes(found)
        if name in _TRACERS[route.name]
    ]
    for route in wanted:
        if not route.refusal and (may_restart or not route.needs):
            return route
    waiting = next((route for route in wanted if not route.refusal), None)
    subject = found.app.label if found.app else "the process"
    closed = "; ".join(f"{route.name}: {route.refusal}" for route in wanted if route.refusal)
    if waiting is not None:
        reason = f" ({closed})" if closed else ""
        raise TracerError(f"{subject} can be measured from its start only{reason}", waiting.needs)
    way_out = _another_tracer(name, found) or advice(found)
    raise TracerError(f"{subject} cannot be measured on {found.device} ({closed})", way_out)


def _carries_pairs(route: Route, found: Situation) -> bool:
    """Functions are searched in the process's files: impossible before it runs, or from an app's name alone."""
    return route.name == "bpf" or (route.name == "ptrace" and found.app is None)


def _another_tracer(name: TracerName, found: Situation) -> str:
    """The best open route that the chosen tracer excludes, "" = none."""
    for route in routes(found):
        if name not in _TRACERS[route.name] and not route.refusal:
            needs = f" ({route.needs})" if route.needs else ""
            return f"--tracer {_TRACERS[route.name][1]} is open{needs}"
    return ""


def advice(found: Situation) -> str:
    """The way out if no route is open."""
    app = found.app
    if app is not None and app.is_profileable and not app.is_debuggable and found.api_level >= _HEAPPROFD_API:
        return f"it is profileable: use heapprofd (tools/heap_profile android -n {app.package}), or a debuggable build"
    if app is not None:
        return "use a debuggable build with the wrap.sh that `doctor --package` prints, or root the device"
    return "root the device (adb root, or su)"


def bpf_route(found: Situation) -> Route:
    if not found.is_64_bit:
        return Route("bpf", "32-bit code, where the kernel places no uprobes")
    if not found.has_root:
        return Route("bpf", "no root")
    return Route("bpf", found.bpf_refusal)


def _wrap(found: Situation) -> Route:
    needs = "add --launch: the shim has to be there from the start"
    if found.app is None:
        return Route("wrap", "the shim cannot attach to a running process; name the app by --package")
    return Route("wrap", "" if found.has_root else "no root to set the wrap property", needs)


def _run_as(found: Situation) -> Route:
    needs = "add --launch, and put the wrap.sh that `doctor --package` prints into the app"
    if found.app is None:
        return Route("run-as", "only for apps")
    if found.app.run_as_refusal:
        return Route("run-as", found.app.run_as_refusal)
    if found.api_level and found.api_level < _WRAP_SH_API:
        return Route("run-as", f"wrap.sh needs API level {_WRAP_SH_API}, the device has {found.api_level}")
    if found.lacks_wrap_script:
        return Route("run-as", "the app carries no wrap.sh (`doctor --package` prints one)")
    return Route("run-as", "", needs)


def _startup(found: Situation) -> Route:
    """The runtime loads the shim into a starting process, before the app's own code."""
    refusal = _runtime_refusal(found, "startup_agents", _STARTUP_AGENTS_API)
    return Route("startup", refusal, "add --launch: a process loads it when it starts")


def _agent(found: Situation) -> Route:
    """The system makes the running app load the shim."""
    return Route("agent", _runtime_refusal(found, "attach-agent", _ATTACH_AGENT_API))


def _runtime_refusal(found: Situation, what: str, api_level: int) -> str:
    """Why the runtime does not load the shim as an agent, "" = it does. api_level: the first with `what`."""
    if found.app is None:
        return "only for apps"
    if not found.is_64_bit:
        return "32-bit code, which has not been tried"
    if found.app.run_as_refusal:
        return found.app.run_as_refusal
    if found.api_level < api_level:
        return f"{what} needs API level {api_level}, the device has {found.api_level}"
    return ""


def _ptrace(found: Situation) -> Route:
    """Attaches to a running process. Only run-as gives us an app's own user, and the shim must be in the app's folder."""
    if not found.is_64_bit:
        return Route("ptrace", "32-bit code, which a 64-bit agent does not enter")
    return Route("ptrace", found.app.run_as_refusal if found.app else "")
