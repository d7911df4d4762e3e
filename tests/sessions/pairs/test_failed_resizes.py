"""Calls that resize to 0 and return 0: a failure, by which the old handle stays, unless the pair says realloc's rule."""

from pathlib import Path

import pytest

from tests.sessions.pairs.conftest import TRACERS, WORKLOADS, in_library, traced


@pytest.mark.parametrize("tracer", TRACERS)
def test_what_stays(tracer: str, tmp_path: Path) -> None:
    program = in_library(tmp_path, "regrow.c", "regrow_main.c")
    done = traced(tracer, tmp_path, (str(WORKLOADS / "regrow.toml"),), program)
    kept = {name: done.amounts(f"pair:{name}") for name in ("regrow", "conditional", "remake")}
    assert kept == {"regrow": (20, 1), "conditional": (30, 1), "remake": (0, 0)}
