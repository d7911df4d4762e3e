"""Keeps an interpreter busy in Python and C, recursively: what its stacks are sampled from."""

import collections
import json
import random
import re
import sys


def tree(depth: int) -> dict[str, object]:
    if not depth:
        return {"x": re.sub("a+", lambda found: found[0] * 2, "baab" * 5)}
    return {"a": [tree(depth - 1) for _ in range(3)], "b": str(random.random())}


for _ in range(int(sys.argv[1])):
    document = json.loads(json.dumps(tree(8), indent=1))
    collections.Counter(sorted(json.dumps(document).split(), key=lambda word: (len(word), word)))
