"""Sessions on a device: selects the route, deploys the agent and the shim, pulls files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.adb.app import (
    App,
    AppProcess,
    find_app,
    find_zygote,
    full_name,
    lacks_wrap_script,
    launch,
    parent_of,
    wait_for_process,
)
from memleak_android.host.machine.adb.facts import api_level
from memleak_android.host.machine.adb.modules import RemoteFiles
from memleak_android.host.machine.adb.process import RemoteProcess, running_command
from memleak_android.host.machine.adb.pulled_files import PulledFiles
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary
from memleak_android.host.machine.capabilities import bpf_refusal, probe_agent
from memleak_android.host.machine.scan.blocks import scan_by_agent
from memleak_android.host.machine.scan.words import Addresses, MemoryScan
from memleak_android.host.machine.target import AppUser, Deployment, Target
from memleak_android.host.tracers.agent.session import AgentSession, ZygoteSession
from memleak_android.host.tracers.agent.session_options import PairPlan, PairPlanner, SessionOptions
from memleak_android.host.tracers.android import attach_agent, ptrace, wrap
from memleak_android.host.tracers.android.bpf import check_word_size, plan_pairs, plan_remote
from memleak_android.host.tracers.android.command import find_command, start_by_bpf, start_with_shim
from memleak_android.host.tracers.android.route import Situation, bpf_route, choose_route, routes
from memleak_android.host.tracers.local import kernel
from memleak_android.host.tracers.local.attach import HookName
from memleak_android.host.tracers.local.start import TracerName, instead_of_bpf
from memleak_android.host.wire.blocks import Rows

_VDSO_BYTES_MAX = 1 << 20
_LAUNCHED_S = 30.0


@dataclass(frozen=True, slots=True)
class AppRequest:
    """A process of an app. process: None = the main one. launch: restart the app. wait: until it is started."""

    package: str
    process: str | None = None
    user: int = 0
    launch: bool = False
    wait: bool = False


class DeviceTracers:
    """Starts sessions on one device. files: source of its processes' modules, during and after sessions."""

    def __init__(self, target: Target, cache_dir: Path, app: AppRequest | None = None) -> None:
        self._target = target
        self._request = app
        self._deployed: Deployment | None = None
        self._hook: HookName = "plt"
        self._pulled = PulledFiles(target, cache_dir)
        self.files = RemoteFiles(target, self._pulled)
        self.files.images = ReadingAgent(target, self._deploy_reader)

    def start(self, name: TracerName, options: SessionOptions) -> AgentSession:
        """Raises DeviceError, TargetError or TracerError."""
        if name == "bcc":
            raise TracerError("--tracer bcc compiles for this machine only", "use --tracer bpf on a device")
        if name in ("plt", "inline") and options.command:
            raise TracerError(
                f"--tracer {name} is for processes that run already", "use --tracer bpf or preload"
            )
        if name == "inline" and options.pairs is not None:
            raise TracerError(
                "--tracer inline supports --pairs on this machine only",
                "use --tracer bpf, or plt for a process named by --pid",
            )
        self._hook = "inline" if name == "inline" else "plt"
        try:
            if options.kernel:
                return self._start_kernel(options)
            if self._request is not None:
                return self._start_app(name, options, self._request)
            if options.pid is not None:
                return self._start_pid(name, options, options.pid)
            return self._start_command(name, options)
        except BaseException:
            self._clean_up()
            raise

    @property
    def kept_copies(self) -> Mapping[str, Path]:
        """Copies of pulled files, by build-id."""
        return self._pulled.kept

    def scan_memory(
        self, pid: int, block_addresses: Addresses, held: Rows | np.void | None = None
    ) -> MemoryScan:
        """Scans by a second agent with sufficient rights. Raises TargetError, DeviceError."""
        assert self.files.images is not None
        return scan_by_agent(self.files.images, pid, block_addresses, held)

    def close(self) -> None:
        if self.files.images is not None:
            self.files.images.close()
        self._clean_up()
        self._pulled.close()

    def _start_kernel(self, options: SessionOptions) -> AgentSession:
        """Traces the kernel for the app's process (awaited if requested), for options.pid, or for all processes."""
        if not self._target.has_root:
            raise TracerError(
                f"the kernel's allocators can be traced by root only, and {self._target.name} has no way to root",
                "use a device that lets adb root or su through",
            )
        pid, facts = options.pid, dict[str, Any]()
        if self._request is not None:
            app = find_app(self._target, self._request.package, self._request.user)
            found = self._await(app, self._request, None if self._request.wait else 0.0)
            pid, facts = found.pid, _app_facts(app) | {"command": found.name}
        elif pid is not None:
            facts = {"command": running_command(self._target, pid)}
        agent = self._agent()
        self.files.vdso = self._vdso()
        session = kernel.start_on(self._target, agent, replace(options, pid=pid), self._clean_up)
        session.target |= facts
        return session

    def _start_command(self, name: TracerName, options: SessionOptions) -> AgentSession:
        program = find_command(self._target, options.command[0], self._pulled)
        is_64_bit = program is None or program.is_64_bit
        refusal = "" if name == "preload" else bpf_route(self._situation(is_64_bit, None)).refusal
        command = options.command[0]
        if name == "bpf" and refusal:
            raise TracerError(
                f"{command} cannot be measured by bpf on {self._target.name}: {refusal}",
                "use --tracer preload",
            )
        if name == "preload" or refusal:
            paths = self._deploy(("memleakd", "libmemleak.so"), program.machine if program else "").paths
            session = start_with_shim(
                self._target, options, program, self._pulled, dict(paths), self._clean_up
            )
            session.fallback = instead_of_bpf(refusal, options.pairs is not None)
        else:
            session = start_by_bpf(
                self._target, options, program, self._pulled, self._agent(), self._clean_up
            )
        session.target = {"attached": False}
        self.files.vdso = self._vdso()
        return session

    def _start_pid(self, name: TracerName, options: SessionOptions, pid: int) -> AgentSession:
        process = RemoteProcess.open(self._target, pid)
        situation = self._situation(process.is_64_bit, None)
        route = choose_route(name, situation, may_restart=False, with_pairs=options.pairs is not None)
        if route.name == "bpf":
            return self._attach(options, pid)
        session = self._enter(options, situation, pid)
        session.fallback = instead_of_bpf(bpf_route(situation).refusal, options.pairs is not None)
        return session

    def _start_app(self, name: TracerName, options: SessionOptions, request: AppRequest) -> AgentSession:
        app = find_app(self._target, request.package, request.user)
        self._read_as(app)
        found = None if request.launch else self._await(app, request, None if request.wait else 0.0)
        situation = self._situation(wrap.app_arch(self._target, app) != "arm32", app)
        route = choose_route(
            name, situation, may_restart=request.launch, with_pairs=options.pairs is not None
        )
        if route.name == "bpf":
            session = (
                self._launch(options, app, request) if found is None else self._attach(options, found.pid)
            )
        elif route.name in ("agent", "ptrace"):
            if found is None:
                launch(self._target, app)
            found = found or self._await(app, request, _LAUNCHED_S)
            session = self._enter(options, situation, found.pid, found.name if route.name == "agent" else "")
        elif route.name == "startup":
            arch, process = wrap.app_arch(self._target, app), full_name(app, request.process)
            session = attach_agent.start_at_launch(self._target, options.lines(), app, process, arch=arch)
        elif route.name == "wrap":
            process = full_name(app, request.process)
            session = wrap.start_wrapped(self._target, app, process, options.lines())
        else:
            session = wrap.start_run_as(self._target, app, options.lines())
        if route.name != "bpf":
            self.files.vdso = self._vdso()
            refusals = [route.refusal for route in routes(situation) if route.refusal]
            session.fallback = "; ".join([*refusals, *([session.fallback] if session.fallback else [])])
        session.target |= _app_facts(app) | {"command": found.name if found else app.package}
        return session

    def _enter(self, options: SessionOptions, situation: Situation, pid: int, name: str = "") -> AgentSession:
        """Attaches to a running process: by the system if possible, else by ptrace. The session's fallback has the system's refusal."""
        app = situation.app
        arch = wrap.app_arch(self._target, app) if app else self._target.arch
        self._clean_up()
        session, refusal = None, ""
        if app and name:
            session, refusal = self._enter_as_agent(replace(options, pid=None).lines(), app, pid, name, arch)
        if session is None:
            own = replace(options, pid=pid)
            pairs = self._pairs_by_slots(own.pairs, pid) if own.pairs is not None else None
            session = ptrace.start(self._target, own, app, self._hook, pairs, arch=arch)
        self.files.vdso = self._vdso()
        session.fallback = refusal
        return session

    def _enter_as_agent(
        self, lines: list[str], app: App, pid: int, name: str, arch: str
    ) -> tuple[AgentSession | None, str]:
        """The session, or why there is none.

        Failures during this route leave the next one open: the app is no longer debuggable, its SELinux domain may not map the file,
        or its main thread hangs.
        """
        try:
            session = attach_agent.start(self._target, lines, app, name, arch=arch)
        except (TracerError, TargetError) as error:
            return None, f"{error.message}; attached by ptrace instead"
        session.target = {"pid": pid, "attached": True}
        return session, ""

    def _pairs_by_slots(self, planner: PairPlanner, pid: int) -> PairPlan:
        process = RemoteProcess.open(self._target, pid)
        try:
            objects = process.objects(self._agent(), ())
            return plan_pairs(process, objects, self.files, planner, by="slots")
        finally:
            self._clean_up()

    def _await(self, app: App, request: AppRequest, timeout_s: float | None) -> AppProcess:
        return wait_for_process(self._target, app, request.process, timeout_s)

    def _situation(self, is_64_bit: bool, app: App | None) -> Situation:
        has_root = self._target.has_root
        refusal = bpf_refusal(probe_agent(self._target, self._agent())) if has_root and is_64_bit else ""
        level, without = api_level(self._target), app is not None and lacks_wrap_script(self._target, app)
        return Situation(self._target.name, has_root, refusal, is_64_bit, app, level, without)

    def _launch(self, options: SessionOptions, app: App, request: AppRequest) -> AgentSession:
        """Traces from the app's first allocation on, through its zygote, whose children inherit the probes."""
        zygote = find_zygote(self._target, app)

        def start() -> int:
            launch(self._target, app)
            pid = self._await(app, request, _LAUNCHED_S).pid
            if parent_of(self._target, pid) != zygote.pid:
                raise TracerError(
                    f"{app.label} was not forked by {zygote.name}, so its start was not traced",
                    "try again while it runs, or attach without --launch",
                )
            return pid

        session = self._attach(replace(options, follow=True), zygote.pid, start)
        session.target["attached"] = False
        return session

    def _attach(
        self, options: SessionOptions, pid: int, start: Callable[[], int] | None = None
    ) -> AgentSession:
        """start: makes `pid` fork the measured process and returns that process's pid."""
        process = RemoteProcess.open(self._target, pid)
        check_word_size(process)
        agent = self._agent()
        self.files.vdso = self._vdso()
        plan = plan_remote(process, agent, self.files, options.allocator, options.pairs)
        channel = self._target.open_agent([agent, "bpf"], as_root=True)
        lines = [*replace(options, pid=process.pid).bpf_lines(), *plan.lines()]
        if start is None:
            session = AgentSession("bpf", channel, lines, clean_up=self._clean_up)
        else:
            session = ZygoteSession(channel, lines, start, self._clean_up)
        session.notes = plan.notes
        session.answer_functions(plan.pairs, plan.unplaced)
        session.target = {"command": process.command, "pid": process.pid, "attached": True}
        session.about = plan.about()
        return session

    def _agent(self) -> str:
        """The agent for the device's own architecture, deployed at the first use."""
        return (self._deployed or self._deploy(("memleakd",), "")).paths["memleakd"]

    def _deploy(self, names: Sequence[str], arch: str) -> Deployment:
        """Replaces earlier files. arch: "" = the device's own."""
        self._clean_up()
        found = {name: find_binary(name, arch or self._target.arch) for name in names}
        self._deployed = self._target.deploy(found)
        return self._deployed

    def _read_as(self, app: App) -> None:
        """Without root, a debuggable app's files and memory are read as the app."""
        if not self._target.has_root and not app.run_as_refusal:
            self.files.run_as = app.as_user
            arch = wrap.app_arch(self._target, app)
            bring = partial(self._deploy_reader, arch=arch)
            self.files.images = ReadingAgent(self._target, bring, app.as_user)

    def _deploy_reader(self, run_as: AppUser | None, arch: str = "") -> Deployment:
        """A second agent, independent of the session's, which may have ended."""
        agent = find_binary("memleakd", arch or self._target.arch)
        return self._target.deploy({"memleakd": agent}, run_as=run_as)

    def _clean_up(self) -> None:
        deployed, self._deployed = self._deployed, None
        if deployed is not None:
            deployed.close()

    def _vdso(self) -> bytes:
        return self._target.run([self._agent(), "vdso"], limit_bytes=_VDSO_BYTES_MAX).out


def _app_facts(app: App) -> dict[str, Any]:
    """Facts about the measured app for SESSION."""
    return {"package": app.package, "version": app.version, "version_code": app.version_code, "abi": app.abi}
