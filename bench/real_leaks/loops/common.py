"""The loop of all Python cases: `run(step, per_s)`.

SECONDS: how long at least. UNTIL: a file that ends the steps, if it is set. READY: a file made when the steps begin. TRUTH: a JSON file with the growth of RSS over the last two thirds.
"""

import json
import os
import time


def _rss():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def run(step, per_s):
    """Calls step() `per_s` times a second."""
    seconds, begin, steps, early = float(os.environ.get("SECONDS", "12")), time.monotonic(), 0, None
    if "READY" in os.environ:
        open(os.environ["READY"], "w").close()
    while True:
        for _ in range(max(1, per_s // 20)):
            step()
            steps += 1
        now = time.monotonic() - begin
        if early is None and now > seconds / 3:
            early = now, _rss(), steps
        if now > seconds and os.path.exists(os.environ.get("UNTIL", "/")):
            break
        if steps / per_s > now:
            time.sleep(steps / per_s - now)
    took, rise, done = now - early[0], _rss() - early[1], steps - early[2]
    truth = {"rss_per_s": rise / took, "steps_per_s": done / took, "rss_a_step": rise / done}
    if "TRUTH" in os.environ:
        with open(os.environ["TRUTH"], "w") as out:
            json.dump(truth, out)
    else:
        print(truth)
