"""An app on a device: its facts from the package manager, and its running processes.

Facts: uid = user * 100000 + app id, isolated processes have app ids from 90000 (frameworks/base UserHandle,
Process.FIRST_APP_ZYGOTE_ISOLATED_UID, FIRST_ISOLATED_UID); a process is named PACKAGE, or PACKAGE:NAME for
android:process=":NAME" (ActivityThread sets argv[0]).
"""

import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memleak_android.host.console import one_line
from memleak_android.host.errors import DeviceError, TargetError, UsageError
from memleak_android.host.machine.parse import decimal
from memleak_android.host.machine.target import AppUser, Target

PER_USER = 100_000
_FIRST_ISOLATED = 90_000
_PACKAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")  # "android" itself has no dot
_PACKAGE_CHARACTERS_MAX = 223  # PackageParser.MAX_FILE_NAME_SIZE
# Bounded to one line each: a dump of newlines only, or of unclosed brackets, is scanned once.
_FLAGS = re.compile(r"(?m)^[ \t]*(?:pkgFlags|flags|privateFlags|pkgPrivateFlags)=\[([^\]\n]*)\]")
_NEXT_SECTION = re.compile(r"(?m)^[ \t]*Package \[|^\S")
_COMPONENT = re.compile(r"[\w.$]+/[\w.$]+")
_POLL_S = 0.2
_PM_TIMEOUT_S = 60.0  # pm and dumpsys start a runtime, which takes many seconds on a busy device
_LAUNCH_TIMEOUT_S = 30.0

# $1: package, $2: user, $3: arguments of run-as, $4: separator of the parts. Android 7's ps takes `-A` for a process name.
_LOOK = """pm path --user "$2" "$1"; printf %s "$4"
dumpsys package "$1"; printf %s "$4"
run-as "$1" $3 id 2>&1; printf %s "$4"; exit 0"""
# $1: the folder of its base.apk; its native libraries are extracted below (PackageManager's nativeLibraryDir).
_LOOK_FOR_SCRIPT = """[ -d "$1" ] && [ -x "$1" ] || exit 0
[ ! -d "$1/lib" ] || [ -r "$1/lib" ] || exit 0
for file in "$1"/lib/*/wrap.sh; do
  [ ! -e "$file" ] || { [ -r "$file" ] && ! grep -q memleak "$file"; } || exit 0
done
echo none"""
_PROCESSES = "ps -A -o PID,UID,NAME 2>/dev/null"


@dataclass(frozen=True, slots=True)
class App:
    """An installed package, for one user. None, "" and () mean unknown.

    run_as_refusal: why run-as does not become the app, "" if it does.
    """

    package: str
    user: int
    app_id: int | None
    is_debuggable: bool
    is_profileable: bool
    abi: str
    paths: tuple[str, ...]
    run_as_refusal: str
    version: str = ""
    version_code: int = 0

    @property
    def uid(self) -> int | None:
        return None if self.app_id is None else self.user * PER_USER + self.app_id

    @property
    def as_user(self) -> AppUser:
        return AppUser(self.package, self.user)

    @property
    def label(self) -> str:
        return self.package if not self.user else f"{self.package} of user {self.user}"


@dataclass(frozen=True, slots=True)
class AppProcess:
    pid: int
    uid: int
    name: str


def check_package(package: str) -> str:
    """Returns the name. Raises UsageError if it is not a package name."""
    if not _PACKAGE.fullmatch(package) or len(package) > _PACKAGE_CHARACTERS_MAX:
        raise UsageError(f"{one_line(package)!r} is not a package name", "write it as in com.example.app")
    return package


def find_app(target: Target, package: str, user: int = 0) -> App:
    """Raises TargetError if it is not installed for that user, DeviceError, UsageError."""
    check_package(package)
    mark = secrets.token_hex(16)
    as_user = " ".join(AppUser(package, user).words[2:])
    argv = ["sh", "-c", _LOOK, "sh", package, str(user), as_user, mark]
    answer = target.run(argv, timeout_s=_PM_TIMEOUT_S)
    parts = [part.decode("utf-8", "replace").replace("\r", "") for part in answer.out.split(mark.encode())]
    if len(parts) != 4:
        raise DeviceError(
            f"{target.name} did not answer about {package}: {answer.complaint or 'incomplete answer'}",
            "try again",
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


def lacks_wrap_script(target: Target, app: App) -> bool:
    """Whether the app's wrap.sh (ProcessList.startProcess) is missing or is not ours. False if unknown."""
    folder = app.paths[0].rpartition("/")[0] if app.paths else ""
    return bool(folder) and target.run(["sh", "-c", _LOOK_FOR_SCRIPT, "sh", folder]).out.strip() == b"none"


def parse_app(package: str, user: int, paths: Sequence[str], dump: str, run_as: str) -> App:
    """dump: of `dumpsys package PACKAGE`; only the package's own section is used. run_as: of `run-as … id`."""
    section = _section(dump, package)
    number = decimal(_field(section, "appId") or _field(section, "userId"))
    flags = " ".join(_FLAGS.findall(section))
    abi = _field(section, "primaryCpuAbi")
    return App(
        package,
        user,
        None if number is None else number % PER_USER,
        "DEBUGGABLE" in flags.split(),
        any(flag.endswith("PROFILEABLE_BY_SHELL") for flag in flags.split()),
        "" if abi == "null" else one_line(abi),
        tuple(paths),
        ""
        if "uid=" in run_as
        else one_line(run_as.strip().splitlines()[-1] if run_as.strip() else "no answer"),
        one_line(_field(section, "versionName").replace("null", "", 1)),
        decimal(_field(section, "versionCode")) or 0,
    )


def _section(dump: str, package: str) -> str:
    """The lines from `Package [PACKAGE]` up to the next package's or group's."""
    start = re.search(rf"(?m)^[ \t]*Package \[{re.escape(package)}\]", dump)
    if start is None:
        return ""
    end = _NEXT_SECTION.search(dump, start.end())
    return dump[start.start() : end.start()] if end else dump[start.start() :]


def _field(section: str, name: str) -> str:
    found = re.search(rf"(?m)^[ \t]*{name}=(\S+)", section)
    return found[1] if found else ""


def running_processes(target: Target, app: App) -> list[AppProcess]:
    """The app's processes, the main one first. A name alone is not proof: a process can choose its name."""
    answer = target.run(["sh", "-c", _PROCESSES], as_root=target.has_root)
    found = [
        process for process in parse_processes(answer.out.decode("utf-8", "replace")) if _is_of(app, process)
    ]
    return sorted(found, key=lambda process: (process.name != app.package, process.pid))


def find_zygote(target: Target, app: App) -> AppProcess:
    """The process that a 64-bit app is forked from: the parent of a running one, else zygote64. Raises TargetError."""
    answer = target.run(["sh", "-c", _PROCESSES], as_root=target.has_root)
    processes = parse_processes(answer.out.decode("utf-8", "replace"))
    parents = {parent_of(target, process.pid) for process in processes if _is_of(app, process)}
    zygotes = [process for process in processes if process.name.startswith("zygote") and not process.uid]
    for process in zygotes:
        if process.pid in parents or (
            process.name == "zygote64" and not parents & {other.pid for other in zygotes}
        ):
            return process
    raise TargetError(
        f"{target.name} has no zygote64 to start an app from", "start the app, without --launch"
    )


def parent_of(target: Target, pid: int) -> int:
    """The parent's process id, 0 if the process has ended."""
    answer = target.run(
        ["sh", "-c", 'grep ^PPid: "/proc/$1/status"', "sh", str(pid)], as_root=target.has_root
    )
    return decimal(answer.out.partition(b":")[2].strip()) or 0


def parse_processes(text: str) -> list[AppProcess]:
    """Parses `ps -A -o PID,UID,NAME`. Malformed lines are skipped."""
    found = []
    for line in text.replace("\r", "").splitlines():
        fields = line.split(None, 2)
        pid, uid = (decimal(field) for field in (fields if len(fields) == 3 else ("", "", ""))[:2])
        if pid is not None and uid is not None and pid < 1 << 31:
            found.append(AppProcess(pid, uid, fields[2].strip()))
    return found


def _is_of(app: App, process: AppProcess) -> bool:
    user, app_id = divmod(process.uid, PER_USER)
    is_named = process.name == app.package or process.name.startswith(f"{app.package}:")
    if user != app.user:
        return False
    return app_id == app.app_id or (is_named and (app.app_id is None or app_id >= _FIRST_ISOLATED))


def full_name(app: App, name: str | None) -> str:
    """The full name of a process: `:remote` is relative to the package; None is the main process."""
    return f"{app.package}{name}" if name and name.startswith(":") else name or app.package


def choose_process(app: App, processes: Sequence[AppProcess], name: str | None) -> AppProcess:
    """The process of that full name or `:remote`; without a name the main process, or the only one.

    Raises TargetError if none or several match.
    """
    wanted = full_name(app, name)
    fitting = [process for process in processes if process.name == wanted]
    if not fitting and name is None and len(processes) == 1:
        fitting = list(processes)
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{one_line(process.name)} (pid {process.pid})" for process in processes[:20])
    if fitting:
        raise TargetError(
            f"{len(fitting)} processes are called {one_line(wanted)}: {listed}", "name one by --pid"
        )
    if not processes:
        raise TargetError(f"{app.label} is not running", "start it, or use --launch or --wait")
    if name is None:
        raise TargetError(f"the main process of {app.label} is not running", f"use --process NAME: {listed}")
    raise TargetError(f"{app.label} has no process {one_line(wanted)}", f"it runs {listed}")


def wait_for_process(target: Target, app: App, name: str | None, timeout_s: float | None) -> AppProcess:
    """As choose_process(), repeated until it succeeds; raises its last error after the time (None = no limit)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return choose_process(app, running_processes(target, app), name)
        except TargetError:
            if deadline is not None and time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def launch(target: Target, app: App, pause: Callable[[], None] = lambda: None) -> None:
    """Restarts the app's launcher activity. pause: called between its end and its start. Raises TargetError."""
    user = ["--user", str(app.user)]
    category = "android.intent.category.LAUNCHER"
    resolved = target.run(
        ["cmd", "package", "resolve-activity", "--brief", *user, "-c", category, app.package],
        timeout_s=_PM_TIMEOUT_S,
    )
    lines = resolved.out.decode("utf-8", "replace").split()
    component = next((line for line in reversed(lines) if _COMPONENT.fullmatch(line)), "")
    if not component and app.user:  # monkey does not support users
        raise TargetError(f"{app.label} has no activity to start", "start it by hand, with --wait")
    # ends its services and jobs, too, until it is started again
    target.run(["am", "force-stop", "--user", str(app.user), app.package], timeout_s=_PM_TIMEOUT_S)
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
            f"{app.label} could not be started: {one_line(reason.strip())}", "start it by hand, with --wait"
        )
