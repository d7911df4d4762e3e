"""A process that allocates and frees all the time is attached to and left: no block is held but those in its hands."""

import subprocess
from pathlib import Path

import pytest

from tests.support.workloads import run

pytestmark = pytest.mark.proof

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
