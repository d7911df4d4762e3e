"""Starts the agent of a snoop session: here, or on a device, whose files it pulls."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.adb.modules import RemoteFiles
from memleak_android.host.machine.adb.process import RemoteObject, RemoteProcess
from memleak_android.host.machine.adb.pulled_files import PulledFiles
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.capabilities import bpf_refusal, probe_agent
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.machine.target import Target
from memleak_android.host.snoop.agent_lines import SnoopOptions, snoop_lines
from memleak_android.host.snoop.placing import SnoopPlan
from memleak_android.host.snoop.planning import of_each
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import ProbedFile
from memleak_android.host.tracers.android.bpf import check_word_size, path_of


class RemoteSnoop:
    """Snoop sessions on a rooted device. Only files in which functions are searched are pulled."""

    def __init__(self, target: Target, cache_dir: Path) -> None:
        self._target = target
        self._pulled = PulledFiles(target, cache_dir)
        self.finder = RemoteFiles(target, self._pulled)
        self._agent = ReadingAgent(
            target, lambda _: target.deploy({"memleakd": find_binary("memleakd", target.arch)})
        )
        self._objects: dict[ProbedFile, RemoteObject] = {}
        self.names: dict[int, str] = {}

    def files(self, pids: Sequence[int], on_problem: Callable[[str], None]) -> list[list[ProbedFile]]:
        """The files of each process. Raises TargetError, TracerError, DeviceError."""
        if not self._target.has_root:
            raise TracerError(f"{self._target.name} is not rooted", "snoop needs root there")
        if refusal := bpf_refusal(probe_agent(self._target, self._agent.bring())):
            raise TracerError(f"{self._target.name}: {refusal}", "run `memleak-android doctor`")
        return of_each(pids, self._files_of, on_problem)

    def opened(self, file: ProbedFile) -> str:
        return str(self.finder.needed(file.pid, self._objects[file].mapping, "run as root"))

    def start(self, options: SnoopOptions, plan: SnoopPlan) -> AgentSession:
        channel = self._agent.open("snoop")
        lines = snoop_lines(options, plan)
        return AgentSession("snoop", channel, lines, silence_s=300, clean_up=self._agent.close)

    def close(self) -> None:
        self._agent.close()
        self._pulled.close()

    def _files_of(self, pid: int) -> list[ProbedFile]:
        process = RemoteProcess.open(self._target, pid)
        check_word_size(process)
        self.names[pid] = process.name
        found = []
        for loaded in process.objects(self._agent.bring(), ()):
            file = ProbedFile(pid, loaded.path, path_of(pid, loaded))
            self._objects[file] = loaded
            found.append(file)
        return found


def start_local(options: SnoopOptions, plan: SnoopPlan) -> AgentSession:
    """Starts the agent. Raises TracerError. Placing and removing many probes takes minutes, hence the long silence_s."""
    agent = find_binary("memleakd", local_arch())
    channel = LocalChannel([str(agent), "snoop"], give_stdio=bool(options.command))
    lines = snoop_lines(options, plan) + ([USER_STDIO_LINE] if options.command else [])
    return AgentSession("snoop", channel, lines, silence_s=300)


def process_names(pids: Sequence[int]) -> dict[int, str]:
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return found
