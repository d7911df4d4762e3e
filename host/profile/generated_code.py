"""Code that no file holds: what a compiler wrote into memory while the program ran. It is labelled, not named."""

from __future__ import annotations

import re

ANONYMOUS = "[anon]"  # executable memory that has no name

# ART's code caches: art/runtime/jit/jit_memory_region.cc (jit-cache, jit-zygote-cache by memfd_create(2); before Android 10
# ashmem), art/libartbase/base/mem_map.cc (the prefix dalvik-). Other compilers' by the names that they give their memory
# (prctl(2), PR_SET_VMA_ANON_NAME; memfd_create(2)).
_CODE_CACHE = re.compile(
    r"/memfd:jit-(zygote-)?cache( \(deleted\))?|/dev/ashmem/dalvik-[^/]*jit[^/]*( \(deleted\))?|\[anon:(?i:.*jit.*)\]"
)


def is_generated(path: str) -> bool:
    """Of a mapping's path: no file's code, so that places in it say nothing about another run."""
    return path == ANONYMOUS or path.startswith("[anon:") or _CODE_CACHE.fullmatch(path) is not None


def code_label(path: str) -> str:
    """What stands in the place of a function's name: `[JIT]` where the memory is called so, else `[generated code]`."""
    return "[JIT]" if _CODE_CACHE.fullmatch(path) else "[generated code]"
