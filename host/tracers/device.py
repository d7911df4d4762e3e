"""Sessions on a device: what is brought there, which route is taken, what is pulled from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memleak_android.host.device.android_app import (
    App,
    AppProcess,
    find_app,
    find_zygote,
    full_name,
    launch,
    parent_of,
    wait_for_process,
)
from memleak_android.host.device.pulled_files import PulledFiles
from memleak_android.host.device.remote_modules import RemoteFiles
from memleak_android.host.device.remote_process import RemoteProcess
from memleak_android.host.device.target import Deployment, Target
from memleak_android.host.errors import TracerError
from memleak_android.host.tracers import remote_preload
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.tracers.base import SessionOptions
from memleak_android.host.tracers.bpf import bpf_session_lines
from memleak_android.host.tracers.choice import TracerName
from memleak_android.host.tracers.forked import ForkedSession
from memleak_android.host.tracers.prebuilt import find_binary
from memleak_android.host.tracers.remote_bpf import check_word_size, plan_remote
from memleak_android.host.tracers.route import Situation, choose_route, ways

_VDSO_BYTES_MAX = 1 << 20
_LAUNCHED_S = 30.0

# What the BPF tracer cannot do without, by the agent's own names for it (`memleakd probe`).
_NEEDED = {
    "bpf": "BPF programs may not be loaded",
    "bpf_mappable_array": "its BPF has no mappable arrays (Linux 5.5)",
    "bpf_uprobe_programs": "it loads no BPF program for uprobes: SELinux refuses it, or its kernel has none",
    "uprobe_pmu": "it has no uprobes",
    "sideband": "mappings cannot be followed by perf events",
}


@dataclass(frozen=True, slots=True)
class AppRequest:
    """Which process of which app. process: None = the main one. launch: start it anew; wait: until somebody does."""

    package: str
    process: str | None = None
    user: int = 0
    launch: bool = False
    wait: bool = False


class DeviceTracers:
    """Starts sessions on one device. files: where the modules of its processes come from, during and after them."""

    def __init__(self, target: Target, cache_dir: Path, app: AppRequest | None = None) -> None:
        self._target = target
        self._request = app
        self._deployed: Deployment | None = None
        self._pulled = PulledFiles(target, cache_dir)
        self.files = RemoteFiles(target, self._pulled)

    def start(self, name: TracerName, options: SessionOptions) -> AgentSession:
        """Raises DeviceError, TargetError or TracerError, with the reason and the way out."""
        try:
            if self._request is not None:
                return self._start_app(name, options, self._request)
            if options.pid is not None:
                return self._start_pid(name, options, options.pid)
            return self._start_command(name, options)
        except BaseException:
            self._put_away()
            raise

    def close(self) -> None:
        self._put_away()
        self._pulled.close()

    def _start_command(self, name: TracerName, options: SessionOptions) -> AgentSession:
        if name == "bpf":
            raise TracerError(
                "--tracer bpf attaches to running processes of a device",
                "start the command, and name it by --pid N",
            )
        session = remote_preload.start_command(self._target, options, self._pulled)
        session.target = {"attached": False}
        self.files.vdso = self._vdso()
        return session

    def _start_pid(self, name: TracerName, options: SessionOptions, pid: int) -> AgentSession:
        process = RemoteProcess.open(self._target, pid)
        choose_route(name, self._situation(process.is_64_bit, None), may_restart=False)
        return self._attach(options, pid)

    def _start_app(self, name: TracerName, options: SessionOptions, request: AppRequest) -> AgentSession:
        app = find_app(self._target, request.package, request.user)
        found = None if request.launch else self._await(app, request, None if request.wait else 0.0)
        situation = self._situation(remote_preload.app_arch(self._target, app) != "arm32", app)
        way = choose_route(name, situation, may_restart=request.launch)
        if way.name == "bpf":
            session = (
                self._launch(options, app, request) if found is None else self._attach(options, found.pid)
            )
        elif way.name == "wrap":
            process = full_name(app, request.process)
            session = remote_preload.start_wrapped(self._target, app, process, options)
        else:
            session = remote_preload.start_run_as(self._target, app, options)
        if way.name != "bpf":
            self.files.vdso = self._vdso()
            session.fallback = "; ".join(one.refusal for one in ways(situation) if one.refusal)
        session.target |= {"package": app.package, "command": found.name if found else app.package}
        return session

    def _await(self, app: App, request: AppRequest, timeout_s: float | None) -> AppProcess:
        return wait_for_process(self._target, app, request.process, timeout_s)

    def _situation(self, is_64_bit: bool, app: App | None) -> Situation:
        has_root = self._target.has_root
        refusal = bpf_refusal(probe_agent(self._target, self._agent())) if has_root and is_64_bit else ""
        level = self._target.run(["getprop", "ro.build.version.sdk"]).out.strip()
        return Situation(
            self._target.name, has_root, refusal, is_64_bit, app, int(level) if level.isdigit() else 0
        )

    def _launch(self, options: SessionOptions, app: App, request: AppRequest) -> AgentSession:
        """From the app's first allocation on: by its zygote, whose children inherit the probes."""
        zygote = find_zygote(self._target, app)

        def start() -> int:
            launch(self._target, app)
            pid = self._await(app, request, _LAUNCHED_S).pid
            if parent_of(self._target, pid) != zygote.pid:
                raise TracerError(
                    f"{app.label} was forked by another process than {zygote.name}, and not seen from its start",
                    "try again while it runs, or attach without --launch",
                )
            return pid

        session = self._attach(replace(options, follow=True), zygote.pid, start)
        session.target["attached"] = False
        return session

    def _attach(
        self, options: SessionOptions, pid: int, start: Callable[[], int] | None = None
    ) -> AgentSession:
        """start: makes `pid` fork the process that is meant, and returns that one's id."""
        process = RemoteProcess.open(self._target, pid)
        check_word_size(process)
        agent = self._agent()
        self.files.vdso = self._vdso()
        plan = plan_remote(process, agent, self.files, options)
        channel = self._target.open_agent([agent, "bpf"], as_root=True)
        lines = bpf_session_lines(replace(options, pid=process.pid), plan)
        if start is None:
            session = AgentSession("bpf", channel, lines, put_away=self._put_away)
        else:
            session = ForkedSession(channel, lines, start, self._put_away)
        session.notes = plan.notes
        session.target = {"command": process.command, "pid": process.pid, "attached": True}
        session.about = {"allocator": plan.allocator.path, "probes": [asdict(probe) for probe in plan.probes]}
        return session

    def _agent(self) -> str:
        """The agent of the device's own architecture, brought there when first asked for."""
        if self._deployed is None:
            self._deployed = self._target.deploy({"memleakd": find_binary("memleakd", self._target.arch)})
        return self._deployed.paths["memleakd"]

    def _put_away(self) -> None:
        deployed, self._deployed = self._deployed, None
        if deployed is not None:
            deployed.close()

    def _vdso(self) -> bytes:
        return self._target.run([self._agent(), "vdso"], limit_bytes=_VDSO_BYTES_MAX).out


def probe_agent(target: Target, agent: str) -> Mapping[str, Any]:
    """What the device allows, tried by the agent itself with the rights that a session would have."""
    answer = target.run([agent, "probe"], as_root=target.has_root)
    try:
        found = json.loads(answer.out)
    except ValueError:
        found = None
    if answer.code or not isinstance(found, dict):
        reason = answer.complaint or f"exit code {answer.code}"
        raise TracerError(
            f"the agent does not run on {target.name}: {reason}", "run `memleak-android doctor`"
        )
    return found


def bpf_refusal(found: Mapping[str, Any]) -> str:
    """Why the BPF tracer cannot run there, "" when it can."""
    return next((reason for name, reason in _NEEDED.items() if not found.get(name)), "")
