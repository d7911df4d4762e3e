"""A target that became another program: said to be unmeasured only where that is known."""

from typing import Any

import numpy as np
import pytest

from memleak_android.host.analysis.hook_coverage import unprobed_programs
from memleak_android.host.heap.capture import Capture
from memleak_android.host.profile.coverage import Answer
from memleak_android.host.wire.blocks import Lost, ProcessEvent
from memleak_android.host.wire.session import SessionInfo

PID = 7
LIBC = "/lib/libc.so"


def capture(*images: dict[str, int], lost: int = 0, allocator: str = LIBC) -> Capture:
    """images: by exec, one after another: path → inode of what each maps."""
    made = Capture(session=SessionInfo.decode({"about": {"allocator": allocator}}))
    for number, image in enumerate(images):
        process: Any = np.zeros(1, [("pid", "u4"), ("event", "u2"), ("timestamp_ns", "u8"), ("comm", "S16")])
        process[0] = (PID, ProcessEvent.EXEC, number * 100, f"image{number}".encode())
        made.processes.append(process)
        names = ["pid", "timestamp_ns", "device_major", "device_minor", "inode"]
        rows: Any = np.zeros(len(image), [(name, "u8") for name in names])
        for i, inode in enumerate(image.values()):
            rows[i] = (PID, number * 100 + 1 + i, 8, 1, inode)
        made.mappings.append((rows, list(image)))
    made.status = np.zeros(1, [("lost", "u8", 16)])[0]
    made.status["lost"][Lost.MAPPINGS] = lost
    return made


@pytest.mark.parametrize(
    "images",
    [
        [{"/sh": 1, LIBC: 2}],
        [{"/sh": 1, LIBC: 2}, {"/prog": 3, LIBC: 2}],
        [{"/sh": 1, LIBC: 2}, {"/static": 3}, {"/prog": 4, LIBC: 2}],
        [{"/sh": 1, LIBC: 2}, {}],  # ended before it mapped anything
    ],
    ids=["no exec", "same allocator", "in between", "nothing mapped"],
)
def test_measured(images: list[dict[str, int]]) -> None:
    assert unprobed_programs(capture(*images)) == []


@pytest.mark.parametrize("last", [{"/prog": 3, LIBC: 9}, {"/static": 3}], ids=["other root", "static"])
def test_unmeasured(last: dict[str, int]) -> None:
    images = ({"/sh": 1, LIBC: 2}, last)
    (reason,) = unprobed_programs(capture(*images))
    assert reason.text.endswith(f"without {LIBC}: image1 (1 in all)")
    assert [one.answer for one in unprobed_programs(capture(*images, lost=1))] == [Answer.UNKNOWN]
    assert unprobed_programs(capture(*images, allocator="")) == []
