"""memleakd brought to a device beside that of the session, to read what a process's memory holds."""

from __future__ import annotations

from collections.abc import Callable

from memleak_android.host.machine.target import Answer, AppUser, Channel, Deployment, Target


class ReadingAgent:
    """As root or as the app itself. It is brought there when it is first asked for, and stays until close().

    bring: deploys memleakd for whom it runs as. run_as: the app, None = by root where there is a way to it.
    """

    def __init__(
        self, target: Target, bring: Callable[[AppUser | None], Deployment], run_as: AppUser | None = None
    ) -> None:
        self.target = target
        self._bring = bring
        self._run_as = run_as
        self._deployed: Deployment | None = None

    def bring(self) -> str:
        """Where it is there. Raises DeviceError."""
        self._deployed = self._deployed or self._bring(self._run_as)
        return self._deployed.paths["memleakd"]

    def run(self, *words: str, timeout_s: float, limit_bytes: int) -> Answer:
        """Runs it to its end, with these arguments."""
        return self.target.run(
            [self.bring(), *words],
            as_root=self._as_root,
            run_as=self._run_as,
            timeout_s=timeout_s,
            limit_bytes=limit_bytes,
        )

    def open(self, *words: str) -> Channel:
        return self.target.open_agent([self.bring(), *words], as_root=self._as_root, run_as=self._run_as)

    def close(self) -> None:
        deployed, self._deployed = self._deployed, None
        if deployed is not None:
            deployed.close()

    @property
    def _as_root(self) -> bool:
        return self._run_as is None and self.target.has_root
