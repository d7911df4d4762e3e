"""The example in docs/design/unwinding.md does what it says, on a running program."""

import re
from pathlib import Path

import numpy as np

from memleak_android import unwind
from memleak_android.unwind import TraceEnd
from tests.support.running_program import blocked, eu_stack
from tests.support.stack_capture import capture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "unwinding.md"


def test_the_ten_lines() -> None:
    example, files = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with blocked(["/bin/bash", "-c", "f() { read x; }; f"]) as pid:
        stack, space, _ = capture(pid)
        wanted = eu_stack(pid)
    names = {name: getattr(unwind, name) for name in unwind.__all__} | {
        "np": np,
        "registers": np.array([stack.registers] * 3, np.uint64),
        "stacks": [stack.stack, stack.stack[:-3], stack.stack],
        "addresses": np.array([stack.stack_address] * 3, np.uint64),
        "maps": space.mappings,
    }
    exec(files, names)  # noqa: S102 (the page's own code)
    exec(example, names)  # noqa: S102
    traces = names["traces"]
    assert names["first"].tolist() == wanted and len(wanted) > 3
    assert (traces.end == TraceEnd.ROOT).all() and len(traces) == 3
    assert len(example.splitlines()) == 10
