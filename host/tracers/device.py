"""Sessions on a device: what is brought there, which route is taken, what is pulled from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memleak_android.host.device.android_app import find_app, launch, wait_for_process
from memleak_android.host.device.pulled_files import PulledFiles
from memleak_android.host.device.remote_modules import RemoteFiles
from memleak_android.host.device.remote_process import RemoteProcess
from memleak_android.host.device.target import Target
from memleak_android.host.errors import TracerError
from memleak_android.host.tracers.agent import AgentSession
from memleak_android.host.tracers.base import SessionOptions
from memleak_android.host.tracers.bpf import bpf_session_lines
from memleak_android.host.tracers.choice import TracerName
from memleak_android.host.tracers.prebuilt import find_binary
from memleak_android.host.tracers.remote_bpf import check_word_size, plan_remote

_VDSO_BYTES_MAX = 1 << 20
_LAUNCHED_S = 30.0

# What the BPF tracer cannot do without, by the agent's own names for it (`memleakd probe`).
_NEEDED = {
    "bpf": "BPF programs may not be loaded",
    "bpf_mappable_array": "its BPF has no mappable arrays (Linux 5.5)",
    "bpf_uprobe_programs": "it has no BPF programs for uprobes",
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
        self._pulled = PulledFiles(target, cache_dir)
        self.files = RemoteFiles(target, self._pulled)

    def start(self, name: TracerName, options: SessionOptions) -> AgentSession:
        """Raises DeviceError, TargetError or TracerError, with the reason and the way out."""
        if self._request is not None:
            return self._start_app(name, options, self._request)
        if options.pid is None:
            raise TracerError("commands on a device cannot be measured yet", "name a process by --pid N")
        if name == "preload":
            raise TracerError(
                f"--tracer preload cannot attach to process {options.pid}", "start the program with -- CMD"
            )
        return self._attach(options, options.pid)

    def close(self) -> None:
        self._pulled.close()

    def _start_app(self, name: TracerName, options: SessionOptions, request: AppRequest) -> AgentSession:
        app = find_app(self._target, request.package, request.user)
        if request.launch:
            launch(self._target, app)
        timeout_s = _LAUNCHED_S if request.launch else None if request.wait else 0.0
        process = wait_for_process(self._target, app, request.process, timeout_s)
        session = self._attach(replace(options, pid=process.pid), process.pid)
        session.target |= {"package": app.package, "command": process.name}
        return session

    def _attach(self, options: SessionOptions, pid: int) -> AgentSession:
        process = RemoteProcess.open(self._target, pid)
        check_word_size(process)
        if not self._target.has_root:
            raise TracerError(
                f"process {pid} ({process.name}) cannot be traced: BPF needs root on {self._target.name}",
                "root the device (adb root, or su), or measure a debuggable app by --package",
            )
        with ExitStack() as undo:
            deployed = undo.enter_context(
                self._target.deploy({"memleakd": find_binary("memleakd", self._target.arch)})
            )
            agent = deployed.paths["memleakd"]
            check_capabilities(self._target, probe_agent(self._target, agent))
            self.files.vdso = self._vdso(agent)
            plan = plan_remote(process, agent, self.files, options)
            channel = self._target.open_agent([agent, "bpf"], as_root=True)
            session = AgentSession("bpf", channel, bpf_session_lines(options, plan), put_away=deployed.close)
            undo.pop_all()
        session.notes = plan.notes
        session.target = {"command": process.command, "pid": pid, "attached": True}
        session.about = {"allocator": plan.allocator.path, "probes": [asdict(probe) for probe in plan.probes]}
        return session

    def _vdso(self, agent: str) -> bytes:
        return self._target.run([agent, "vdso"], limit_bytes=_VDSO_BYTES_MAX).out


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


def check_capabilities(target: Target, found: Mapping[str, Any]) -> None:
    if reason := bpf_refusal(found):
        raise TracerError(f"the bpf tracer cannot run on {target.name}: {reason}", "use --tracer preload")
