"""Code that a compiler generated while the program ran. It is in no file: it gets a label instead of a name."""

import re

ANONYMOUS = "[anon]"  # executable memory that has no name

# ART's code caches: art/runtime/jit/jit_memory_region.cc (jit-cache, jit-zygote-cache by memfd_create(2); before Android 10
# ashmem), art/libartbase/base/mem_map.cc (the prefix dalvik-). Other compilers' by the names that they give their memory
# (prctl(2), PR_SET_VMA_ANON_NAME; memfd_create(2)).
_CODE_CACHE = re.compile(
    r"/memfd:jit-(zygote-)?cache( \(deleted\))?|/dev/ashmem/dalvik-[^/]*jit[^/]*( \(deleted\))?|\[anon:(?i:.*jit.*)\]"
)


def is_generated(path: str) -> bool:
    """Tests a mapping's path. Addresses in generated code mean nothing in another run."""
    return path == ANONYMOUS or path.startswith("[anon:") or _CODE_CACHE.fullmatch(path) is not None


def code_label(path: str) -> str:
    """The label: `[JIT]` if the memory is named so, else `[generated code]`."""
    return "[JIT]" if _CODE_CACHE.fullmatch(path) else "[generated code]"
