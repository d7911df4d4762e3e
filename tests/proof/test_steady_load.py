"""200,000 allocations a second over four threads: exact totals, nothing silent, flat memory; 1,000 a second: no loss."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.program_server import start_program
from tests.support.workloads import both_tracers, built, functions, need, run


@pytest.mark.proof
@both_tracers
def test_a_thousand_a_second_without_loss(tracer: str, tmp_path: Path) -> None:
    program = built("colliding_paths")
    result = run(tracer, tmp_path, "--", program, "2000", "2000", "interleaved", "900")
    assert result.totals["lost"] == {} and result.totals["unattributed_objects"] == 0
    assert result.amounts() == (4000 * 101, 4000)
    assert {site["end"] for site in result.sites()} == {"ROOT"}


@pytest.mark.proof
@pytest.mark.timeout(300)
@both_tracers
def test_two_hundred_thousand_a_second(tracer: str, tmp_path: Path) -> None:
    need(tracer)
    seconds, report = 60, tmp_path / "report.json"
    command: list[str | Path] = [built("steady_load"), str(seconds)]
    words = ["--tracer", tracer, "--json", report, "--", *command]
    process = start_program(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        early = late = 0
        for second in range(50):
            time.sleep(1)
            memory = resident_bytes(process.pid)
            early, late = (max(early, memory), late) if second in range(8, 20) else (early, max(late, memory))
            if second == 20:
                late = 0
        assert process.wait(200) in (0, 6)
    finally:
        process.kill()
        process.wait()
    check(report, seconds)
    assert late < early * 1.2 + (8 << 20), f"{early:,} bytes, then {late:,}"


def check(report: Path, seconds: int) -> None:
    found = json.loads(report.read_text())
    totals, leaks = found["totals"], 4 * seconds * 5
    assert (totals["alloc_objects"] - 4 * seconds * 50_000) in range(30)  # the threads' own, and stdio's
    assert "table_full" not in totals["lost"]
    sites = [site for site in found["sites"] if "leak" in functions(site)]
    held = sum(site["inuse_objects"] for site in sites)
    assert held + totals["unattributed_objects"] >= leaks >= held
    if not totals["unattributed_objects"]:
        assert (held, sum(site["inuse_space"] for site in sites)) == (leaks, leaks * 127)


def resident_bytes(pid: int) -> int:
    """Of the program and its agent; not of the command."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(_resident(each) for each in [str(pid), *children])


def _resident(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


THREADS, IN_HAND, SESSIONS = 3, 8, 4
CHURN = f"""
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static void *churn(void *unused)
{{
	for (unsigned round = 0;; round++) {{
		char *volatile block[{IN_HAND}];
		for (int i = 0; i < {IN_HAND}; i++)
			block[i] = malloc(10 + 33 * i);
		for (int i = 0; i < {IN_HAND}; i++)
			free(block[i]);
		if (round % 50 == 0)
			usleep(1000);
	}}
	return unused;
}}
int main(void)
{{
	pthread_t thread;
	for (int i = 0; i < {THREADS}; i++)
		pthread_create(&thread, 0, churn, 0);
	pause();
}}
"""


@pytest.mark.proof
def test_what_is_freed_while_probes_come_and_go_is_not_held(tmp_path: Path) -> None:
    program = tmp_path / "churn"
    build = ["gcc", "-O2", "-x", "c", "-", "-o", program, "-pthread"]
    subprocess.run(build, input=CHURN, text=True, check=True)
    with subprocess.Popen([program]) as process:
        try:
            for _ in range(SESSIONS):
                done = run("bpf", tmp_path, "--pid", str(process.pid), options=["--duration", "1s"])
                assert not any(done.totals["lost"].values())
                assert done.totals["inuse_objects"] <= THREADS * IN_HAND
        finally:
            process.kill()
