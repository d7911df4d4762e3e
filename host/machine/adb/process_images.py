"""Modules read out of a process's memory: for files that nobody may open, deleted or replaced ones among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memleak_android.host.errors import MemleakError
from memleak_android.host.machine.adb.reading_agent import ReadingAgent
from memleak_android.host.machine.target import AppUser, Deployment, Target
from memleak_android.unwind.maps import Mapping

_IMAGE_BYTES_MAX = 256 << 20  # as in device/agent/process/process_image.c
_TIMEOUT_S = 60.0


class ProcessImages:
    """The agent reads them, as root or as the app itself: it is brought there when the first one is asked for."""

    def __init__(
        self, target: Target, bring: Callable[[AppUser | None], Deployment], run_as: AppUser | None = None
    ) -> None:
        self.agent = ReadingAgent(target, bring, run_as)

    def read(self, pid: int, mapping: Mapping, into: Path) -> str:
        """Writes what is mapped there as an ELF file without sections; "", or why it cannot be had."""
        words = ("image", str(pid), f"{mapping.start:x}", str(mapping.inode))
        try:
            answer = self.agent.run(*words, timeout_s=_TIMEOUT_S, limit_bytes=_IMAGE_BYTES_MAX)
        except MemleakError as error:
            return error.message
        if answer.code or not answer.out:
            return answer.complaint or f"exit code {answer.code}"
        into.write_bytes(answer.out)
        return ""

    def close(self) -> None:
        self.agent.close()
