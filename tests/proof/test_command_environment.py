"""A traced command sees what it would see untraced: its environment, to the byte."""

from __future__ import annotations

from pathlib import Path

from tests.support.workloads import both_tracers, run


@both_tracers
def test_environment_is_the_users(tracer: str, tmp_path: Path) -> None:
    given = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "EMPTY": "",
        "ODD": "a=b\tc",
    }
    result = run(tracer, tmp_path, "--", "/usr/bin/env", "-0", environment=given)
    seen = [variable.split("=", 1) for variable in result.out.split("\0")[:-1]]
    assert dict(seen) == given and len(seen) == len(given)
