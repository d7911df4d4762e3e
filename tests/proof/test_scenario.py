"""--scenario and `mark` on a small server: what grows by each run, however long the runs take."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.program_server import run_program, start_program
from tests.support.workloads import Run, both_tracers, built, functions, need, run, serving

REQUESTS = 7  # of each run


def serve(tmp_path: Path, scenario: str, repeat: int, codes: tuple[int, ...] = (0,)) -> Run:
    """The server's run under `scenario`, in which the FIFOs are ./in and ./out."""
    options = ["--scenario", scenario, "--repeat", str(repeat)]
    with serving(tmp_path) as fifos:
        target = ("--", built("serves_requests"), *fifos)
        return run("preload", tmp_path, *target, options=options, codes=codes, timeout_s=60)


@pytest.mark.proof
def test_growth_by_run(tmp_path: Path) -> None:
    once = f"printf {'r' * REQUESTS} >in; head -c {REQUESTS} out >/dev/null; sleep 0.$(($$ % 4))"
    result = serve(tmp_path, once, 8)
    sites = {functions(site)[1]: site for site in result.sites()}
    leak, cache = sites["leak_per_request"], sites["cache_with_bound"]
    growth = leak["growth"]
    assert growth["trend"] == "grows"
    assert leak["growth_bytes_per_s"] * growth["run_s"] == pytest.approx(REQUESTS * 1009)
    assert (growth["high"] - growth["low"]) * growth["run_s"] < 1
    assert cache["growth"]["trend"] == "steady"
    assert result.report["growth_span"]["instants"] == 8


@pytest.mark.proof
def test_failing_scenario_is_incomplete(tmp_path: Path) -> None:
    result = serve(tmp_path, "test ! -e failed || exit 3; touch failed", 6, codes=(6,))
    note = "1 of 6 runs of the scenario are measured: run 2 of the scenario ended with status 3"
    assert note in result.report["notes"]


def marked(session: subprocess.Popen[str], environment: dict[str, str]) -> str:
    """`mark page`, tried until the session has its socket; what it says."""
    words = ["mark", "page", "--session", str(session.pid)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and session.poll() is None:
        done = run_program(words, env=environment, timeout_s=90)
        if not done.returncode:
            return done.stdout.strip()
        time.sleep(0.1)
    raise AssertionError("the session takes no marks")


@pytest.mark.proof
@both_tracers
def test_growth_from_mark_to_mark(tracer: str, tmp_path: Path) -> None:
    """The times between the marks differ by a factor of three."""
    need(tracer)
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = (built("serves_requests"), "in", "out")
    words = ["--tracer", tracer, "--json", "report.json", "-o", "kept", "--", *command]
    requests, answers = (os.open(tmp_path / name, os.O_RDWR) for name in ("in", "out"))
    with start_program(words, environment, cwd=tmp_path, text=True) as session:
        try:
            said = [marked(session, environment)]
            for run_ in range(6):
                os.write(requests, b"r" * REQUESTS)
                assert sum(len(os.read(answers, 1)) for _ in range(REQUESTS)) == REQUESTS
                time.sleep(0.2 * (1 + run_ % 3))
                said.append(marked(session, environment))
            session.send_signal(signal.SIGINT)
            assert session.wait(60) == 0
        finally:
            os.write(requests, b"q")
    assert said == [f"page {n}" for n in range(1, 8)]
    again = ["report", tmp_path / "kept" / "recording.memleak", "--format", "json"]
    read = run_program(again, env=environment)
    for report in (json.loads((tmp_path / "report.json").read_text()), json.loads(read.stdout)):
        growth = {functions(site)[1]: site for site in report["sites"]}
        leak, cache = growth["leak_per_request"], growth["cache_with_bound"]
        assert leak["growth"]["trend"] == "grows"
        assert leak["growth_bytes_per_s"] * leak["growth"]["run_s"] == pytest.approx(REQUESTS * 1009)
        assert cache["growth"]["trend"] != "grows"
        assert report["growth_span"]["instants"] == 7
        assert any("from mark to mark: page was set 7 times" in note for note in report["notes"])
