"""A line of a source file, where it still is what the program was built from."""

import os
import stat
from functools import lru_cache

from memleak_android.host.profile.runtime_sites import SCRIPT_FRAMES
from memleak_android.unwind.file_reading import file_status, open_regular

BYTES_MAX = 1 << 22  # of a source file


@lru_cache(maxsize=256)
def source_line_text(file: str, line: int, module: str, begun_s: float) -> str:
    """The line, without its indentation; "" where there is none, or where the file is newer than the module.

    begun_s: of the measurement. Code of an interpreter is made from its file while the program runs.

    The measured program names the file: only one that everybody may read is shown.
    """
    try:
        built_ns = begun_s * 1e9 if module in SCRIPT_FRAMES else file_status(module).st_mtime_ns
        descriptor = open_regular(file)
    except (OSError, ValueError):
        return ""
    with open(descriptor, "rb") as stream:
        about = os.fstat(descriptor)
        if about.st_mtime_ns > built_ns or not about.st_mode & stat.S_IROTH or about.st_size > BYTES_MAX:
            return ""
        lines = stream.read(BYTES_MAX).split(b"\n")
    return lines[line - 1].decode("utf-8", "replace").strip() if 0 < line <= len(lines) else ""
