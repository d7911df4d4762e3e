"""A process with two libcs: what dlmopen() has loaded into a namespace of its own brings one along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.attached_session import Attached, attach, contents_of, layout_of, leak
from tests.support.gcc import gcc
from tests.support.inline_session import attach_inline, started
from tests.support.workloads import FLAGS

pytestmark = pytest.mark.compares_code

SOURCE = Path(__file__).parents[1] / "programs" / "linker_namespaces.c"


@pytest.mark.parametrize("way", [attach, attach_inline])
def test_the_program_s_own_libc_is_hooked(way: Callable[..., Attached], tmp_path: Path) -> None:
    """Even if the other libc is mapped lower, the shim loads into the program's namespace."""
    program, other = tmp_path / "program", tmp_path / "other.so"
    gcc(*FLAGS, "-Wl,-z,now", "-o", program, SOURCE)
    gcc("-shared", "-Wl,--no-as-needed", "-o", other, "-x", "c", "/dev/null")
    with started(program, str(other)) as process:
        leak(process)
        before, layout = contents_of(process.pid), layout_of(process.pid)
        for _ in range(2):
            found = way(process.pid, lambda: leak(process))
            assert (found.error, found.lost, found.sizes[5003]) == ("", 0, 23)
        assert (contents_of(process.pid), layout_of(process.pid)) == (before, layout)
        leak(process)
        assert process.poll() is None
