"""Progress callbacks for long analyses."""

from collections.abc import Callable

# The step that runs, and the share of it (0 to 1) that is done.
ProgressCallback = Callable[[str, float], None]


def no_progress(step: str, share: float) -> None:
    pass
