"""What --tracer bcc does not do is refused by a line that names the option and the way out."""

from __future__ import annotations

import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.local import bcc

REFUSED = {
    "--follow": SessionOptions(pid=1, follow=True),
    "--mmap": SessionOptions(pid=1, mmap=True),
    "--trace": SessionOptions(pid=1, events=True),
    "--adaptive": SessionOptions(pid=1, adaptive=True),
    "--evidence-after": SessionOptions(pid=1, evidence_after_ns=1),
    "--perf-events": SessionOptions(pid=1, perf_events=True),
    "--unwind fp": SessionOptions(pid=1, unwind="both"),
}


@pytest.mark.parametrize("option", REFUSED)
def test_options_of_other_tracers(option: str) -> None:
    with pytest.raises(TracerError) as caught:
        bcc.check(REFUSED[option])
    assert str(caught.value) == f"--tracer bcc has no {option}; use --tracer bpf with it"
