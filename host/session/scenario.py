"""--scenario CMD --repeat N: what the target is made to do again and again, with a snapshot after each time."""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

STOP_TIMEOUT_S = 5.0
STDERR_FILENO = 2


@dataclass(slots=True)
class Scenario:
    """Runs `command` by sh on this machine, `repeat` times. ends_ns: when the snapshot after each run was taken."""

    command: str
    repeat: int
    ends_ns: list[int] = field(default_factory=list)
    failure: str = ""  # why it ended early
    _process: subprocess.Popen[bytes] | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.failure) or len(self.ends_ns) >= self.repeat

    def wants_snapshot(self) -> bool:
        """Starts the next run where none is under way; True once it has ended."""
        if self.is_over:
            return False
        if self._process is None:
            # what it prints is no result of ours; a group of its own, so that all of it can be ended
            self._process = subprocess.Popen(
                ["sh", "-c", self.command],
                stdin=subprocess.DEVNULL,
                stdout=STDERR_FILENO,
                start_new_session=True,
            )
        status = self._process.poll()
        if status:
            how = f"status {status}" if status > 0 else f"signal {-status}"
            self.failure = f"run {len(self.ends_ns) + 1} of the scenario ended with {how}"
        return status is not None

    def snapshot_taken(self, timestamp_ns: int) -> None:
        """After a run; one that failed does not count."""
        self._process = None
        if not self.failure:
            self.ends_ns.append(timestamp_ns)

    def close(self) -> None:
        """Ends the run that is under way."""
        if self._process is None or self._process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
                return
