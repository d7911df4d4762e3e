"""Progress of the work on a large recording."""

from pathlib import Path

import pytest

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.recording.read import read_profile
from memleak_android.host.session import progress
from tests.support.builders.large_recording import write


def test_steps_and_shares_of_a_recording(tmp_path: Path) -> None:
    write(tmp_path / "a.memleak", 20_000, 10_000)
    steps: list[tuple[str, float]] = []
    read_profile(tmp_path / "a.memleak", View(), progress=lambda what, share: steps.append((what, share)))
    assert list(dict.fromkeys(what for what, _ in steps)) == ["reading", "summing up", "naming stacks"]
    for step in ("reading", "naming stacks"):
        shares = [share for what, share in steps if what == step]
        assert len(shares) >= 3 and shares == sorted(shares) and shares[0] < 0.1 and 0.5 < shares[-1] <= 1


def test_without_a_terminal_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.StepProgress() as shown:
        for seconds in range(25):
            now[0] = 100.0 + seconds
            shown.update("reading", seconds / 25)
    assert capsys.readouterr().err.splitlines() == [
        "memleak-android: reading: 40%",
        "memleak-android: reading: 80%",
    ]
