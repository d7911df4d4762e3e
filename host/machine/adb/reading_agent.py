"""A second memleakd on a device, which reads the memory of a process."""

from collections.abc import Callable
from pathlib import Path

from memleak_android.host.errors import MemleakError
from memleak_android.host.machine.target import Answer, AppUser, Channel, Deployment, Target
from memleak_android.unwind.file_writing import replacing
from memleak_android.unwind.maps import Mapping

_IMAGE_BYTES_MAX = 256 << 20  # as in device/agent/process/process_image.c
_TIMEOUT_S = 60.0


class ReadingAgent:
    """Runs memleakd as root or as the app. The first use deploys it, close() removes it.

    bring: deploys memleakd for its user.
    run_as: the app, None = root if possible.
    """

    def __init__(
        self, target: Target, bring: Callable[[AppUser | None], Deployment], run_as: AppUser | None = None
    ) -> None:
        self.target = target
        self._bring = bring
        self._run_as = run_as
        self._deployed: Deployment | None = None

    def bring(self) -> str:
        """Its path on the device. Raises DeviceError."""
        self._deployed = self._deployed or self._bring(self._run_as)
        return self._deployed.paths["memleakd"]

    def run(self, *words: str, timeout_s: float, limit_bytes: int) -> Answer:
        """Runs it to its end with these arguments."""
        return self.target.run(
            [self.bring(), *words],
            as_root=self._as_root,
            run_as=self._run_as,
            timeout_s=timeout_s,
            limit_bytes=limit_bytes,
        )

    def open(self, *words: str) -> Channel:
        return self.target.open_agent([self.bring(), *words], as_root=self._as_root, run_as=self._run_as)

    def read_image(self, pid: int, mapping: Mapping, into: Path) -> str:
        """Writes the mapped module as an ELF file without sections. Returns "", or why it is unavailable."""
        words = ("image", str(pid), f"{mapping.start:x}", str(mapping.inode))
        try:
            answer = self.run(*words, timeout_s=_TIMEOUT_S, limit_bytes=_IMAGE_BYTES_MAX)
        except MemleakError as error:
            return error.message
        if answer.code or not answer.out:
            return answer.complaint or f"exit code {answer.code}"
        with replacing(into) as file:
            file.write(answer.out)
        return ""

    def close(self) -> None:
        deployed, self._deployed = self._deployed, None
        if deployed is not None:
            deployed.close()

    @property
    def _as_root(self) -> bool:
        return self._run_as is None and self.target.has_root
