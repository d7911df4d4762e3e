"""An app on a device: what the package manager says of it, and which of the running processes are its own.

Facts: uid = user * 100000 + app id, isolated processes have app ids from 90000 (frameworks/base UserHandle,
Process.FIRST_APP_ZYGOTE_ISOLATED_UID, FIRST_ISOLATED_UID); a process is named PACKAGE, or PACKAGE:NAME for
android:process=":NAME" (ActivityThread sets argv[0]).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memleak_android.host.device.parse import printable
from memleak_android.host.device.target import Target
from memleak_android.host.errors import DeviceError, TargetError, UsageError

PER_USER = 100_000
_FIRST_ISOLATED = 90_000
_PACKAGE = re.compile(
    r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*"
)  # android:package; "android" itself has no dot
_PACKAGE_CHARACTERS_MAX = 223  # PackageParser.MAX_FILE_NAME_SIZE
_COMPONENT = re.compile(r"[\w.$]+/[\w.$]+")
_POLL_S = 0.2
_PM_TIMEOUT_S = 60.0  # pm and dumpsys start a runtime of their own, on a busy device for many seconds
_LAUNCH_TIMEOUT_S = 30.0

# $1: package, $2: user, $3: what ends each part. On Android 7 and before `ps -A` looks for a process called -A.
_LOOK = """pm path --user "$2" "$1"; printf %s "$3"
dumpsys package "$1"; printf %s "$3"
run-as "$1" --user "$2" id 2>&1; printf %s "$3"; exit 0"""
_PROCESSES = "ps -A -o PID,UID,NAME 2>/dev/null"


@dataclass(frozen=True, slots=True)
class App:
    """An installed package, for one user. None, "" and () = the device does not tell.

    run_as_refusal: why run-as does not become the app, "" when it does.
    """

    package: str
    user: int
    app_id: int | None
    is_debuggable: bool
    is_profileable: bool
    abi: str
    paths: tuple[str, ...]
    data_dir: str
    run_as_refusal: str

    @property
    def uid(self) -> int | None:
        return None if self.app_id is None else self.user * PER_USER + self.app_id

    @property
    def label(self) -> str:
        return self.package if not self.user else f"{self.package} of user {self.user}"


@dataclass(frozen=True, slots=True)
class AppProcess:
    pid: int
    uid: int
    name: str


def check_package(package: str) -> str:
    """The name itself; raises UsageError for what no package can be called."""
    if not _PACKAGE.fullmatch(package) or len(package) > _PACKAGE_CHARACTERS_MAX:
        raise UsageError(f"{printable(package)!r} is no package name", "write it as in com.example.app")
    return package


def find_app(target: Target, package: str, user: int = 0) -> App:
    """Raises TargetError where it is not installed for that user, DeviceError, UsageError."""
    check_package(package)
    mark = secrets.token_hex(16)
    argv = ["sh", "-c", _LOOK, "sh", package, str(user), mark]
    answer = target.run(argv, timeout_s=_PM_TIMEOUT_S)
    parts = [part.decode("utf-8", "replace").replace("\r", "") for part in answer.out.split(mark.encode())]
    if len(parts) != 4:
        raise DeviceError(
            f"{target.name} did not tell of {package}: {answer.complaint or 'half an answer'}", "try again"
        )
    paths = tuple(
        line.removeprefix("package:") for line in parts[0].splitlines() if line.startswith("package:/")
    )
    if not paths:
        raise TargetError(
            f"{package} is not installed on {target.name}" + (f" for user {user}" if user else ""),
            "install it, or look it up by `adb shell pm list packages`",
        )
    return parse_app(package, user, paths, parts[1], parts[2])


def parse_app(package: str, user: int, paths: Sequence[str], dump: str, run_as: str) -> App:
    """dump: of `dumpsys package PACKAGE`, of which only the package's own section counts. run_as: of `run-as … id`."""
    section = _section(dump, package)
    number = _field(section, "appId") or _field(section, "userId")
    flags = " ".join(
        re.findall(r"(?m)^\s*(?:pkgFlags|flags|privateFlags|pkgPrivateFlags)=\[([^\]]*)\]", section)
    )
    abi = _field(section, "primaryCpuAbi")
    return App(
        package,
        user,
        int(number) % PER_USER if number.isdecimal() else None,
        "DEBUGGABLE" in flags.split(),
        any(flag.endswith("PROFILEABLE_BY_SHELL") for flag in flags.split()),
        "" if abi == "null" else printable(abi),
        tuple(paths),
        f"/data/user/{user}/{package}" if user else f"/data/data/{package}",
        ""
        if "uid=" in run_as
        else printable(run_as.strip().splitlines()[-1] if run_as.strip() else "no answer"),
    )


def _section(dump: str, package: str) -> str:
    """The lines of `Package [PACKAGE]`, up to the next package's or group's."""
    start = re.search(rf"(?m)^\s*Package \[{re.escape(package)}\]", dump)
    if start is None:
        return ""
    end = re.search(r"(?m)^\s*Package \[|^\S", dump[start.end() :])
    return dump[start.start() : start.end() + end.start()] if end else dump[start.start() :]


def _field(section: str, name: str) -> str:
    found = re.search(rf"(?m)^\s*{name}=(\S+)", section)
    return found[1] if found else ""


def running_processes(target: Target, app: App) -> list[AppProcess]:
    """Its processes, the main one first. Names alone do not count: any process may call itself by any."""
    answer = target.run(["sh", "-c", _PROCESSES], as_root=target.has_root)
    found = [one for one in parse_processes(answer.out.decode("utf-8", "replace")) if _is_of(app, one)]
    return sorted(found, key=lambda one: (one.name != app.package, one.pid))


def find_zygote(target: Target, app: App) -> AppProcess:
    """The process that a 64-bit app is forked from: where it runs already its parent, else zygote64. Raises TargetError."""
    answer = target.run(["sh", "-c", _PROCESSES], as_root=target.has_root)
    processes = parse_processes(answer.out.decode("utf-8", "replace"))
    parents = {parent_of(target, one.pid) for one in processes if _is_of(app, one)}
    zygotes = [one for one in processes if one.name.startswith("zygote") and not one.uid]
    for one in zygotes:
        if one.pid in parents or (one.name == "zygote64" and not parents & {other.pid for other in zygotes}):
            return one
    raise TargetError(
        f"{target.name} has no zygote64 to start an app from", "start the app, without --launch"
    )


def parent_of(target: Target, pid: int) -> int:
    """Its parent's process id, 0 where the process is gone."""
    answer = target.run(
        ["sh", "-c", 'grep ^PPid: "/proc/$1/status"', "sh", str(pid)], as_root=target.has_root
    )
    number = answer.out.decode("ascii", "replace").partition(":")[2].strip()
    return int(number) if number.isdecimal() else 0


def parse_processes(text: str) -> list[AppProcess]:
    """Of `ps -A -o PID,UID,NAME`; lines that are none are left out."""
    found = []
    for line in text.replace("\r", "").splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3 and fields[0].isdecimal() and fields[1].isdecimal() and int(fields[0]) < 1 << 31:
            found.append(AppProcess(int(fields[0]), int(fields[1]), fields[2].strip()))
    return found


def _is_of(app: App, process: AppProcess) -> bool:
    user, app_id = divmod(process.uid, PER_USER)
    is_named = process.name == app.package or process.name.startswith(f"{app.package}:")
    if user != app.user:
        return False
    return app_id == app.app_id or (is_named and (app.app_id is None or app_id >= _FIRST_ISOLATED))


def full_name(app: App, name: str | None) -> str:
    """As the process is called: `:remote` belongs to the package; None is the main one."""
    return f"{app.package}{name}" if name and name.startswith(":") else name or app.package


def choose_process(app: App, processes: Sequence[AppProcess], name: str | None) -> AppProcess:
    """The one that is meant: named in full or as `:remote`; without a name the main one, or the only one.

    Raises TargetError where none fits, or several do.
    """
    wanted = full_name(app, name)
    fitting = [one for one in processes if one.name == wanted]
    if not fitting and name is None and len(processes) == 1:
        fitting = list(processes)
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{printable(one.name)} (pid {one.pid})" for one in processes[:20])
    if fitting:
        raise TargetError(
            f"{len(fitting)} processes are called {printable(wanted)}: {listed}", "name one by --pid"
        )
    if not processes:
        raise TargetError(f"{app.label} is not running", "start it, or use --launch or --wait")
    if name is None:
        raise TargetError(f"the main process of {app.label} is not running", f"use --process NAME: {listed}")
    raise TargetError(f"{app.label} has no process {printable(wanted)}", f"it runs {listed}")


def wait_for_process(target: Target, app: App, name: str | None, timeout_s: float | None) -> AppProcess:
    """As choose_process(), as soon as there is one; its last error after the time (None = ever)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return choose_process(app, running_processes(target, app), name)
        except TargetError:
            if deadline is not None and time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def force_stop(target: Target, app: App) -> None:
    """Ends it, and its services and jobs until it is started again."""
    target.run(["am", "force-stop", "--user", str(app.user), app.package], timeout_s=_PM_TIMEOUT_S)


def launch(target: Target, app: App, pause: Callable[[], None] = lambda: None) -> None:
    """Starts its launcher activity anew. pause: called between its end and its start. Raises TargetError."""
    user = ["--user", str(app.user)]
    category = "android.intent.category.LAUNCHER"
    resolved = target.run(
        ["cmd", "package", "resolve-activity", "--brief", *user, "-c", category, app.package],
        timeout_s=_PM_TIMEOUT_S,
    )
    lines = resolved.out.decode("utf-8", "replace").split()
    component = next((line for line in reversed(lines) if _COMPONENT.fullmatch(line)), "")
    force_stop(target, app)
    pause()
    argv = (
        ["am", "start", *user, "-n", component]
        if component
        else ["monkey", "-p", app.package, "-c", category, "1"]
    )
    started = target.run(argv, timeout_s=_LAUNCH_TIMEOUT_S)
    said = (started.out + started.err).decode("utf-8", "replace")
    if started.code or "Error" in said or "No activities found" in said:
        reason = next(
            (line for line in said.splitlines() if "Error" in line or "No activities" in line), said[-200:]
        )
        raise TargetError(
            f"{app.label} could not be started: {printable(reason.strip())}", "start it by hand, with --wait"
        )
