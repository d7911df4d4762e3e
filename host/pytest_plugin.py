"""`pytest --memleak`: the test run under measurement; it fails when a native extension holds memory at its end.

The outer pytest starts memleak-android on an inner one with the same arguments and judges the recording. Counted are the
stacks whose responsible function (site_identity.py) lies in a module that is neither the interpreter's nor the
system's: what an extension or a library loaded by ctypes allocated itself. Python objects are seen with PYTHONMALLOC=malloc.

Nothing of the tool is imported unless the option is given: this module is loaded by every pytest run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memleak_android.host.profile.profile import Profile

INNER = "MEMLEAK_ANDROID_PYTEST"  # set for the inner run
_INTERPRETER = re.compile(r".*/(python[\d.]*|libpython[\w.-]*|lib-dynload/.*)")
_SYSTEM_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "[")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memleak", "native memory that tests leave behind")
    group.addoption(
        "--memleak", action="store_true", help="measure the run; fail when extensions hold memory"
    )
    group.addoption(
        "--memleak-limit", default="0", metavar="BYTES[,COUNT]", help="what they may hold: 64K, or 64K,100"
    )
    group.addoption(
        "--memleak-suppressions", action="append", default=[], metavar="FILE", help="LeakSanitizer's syntax"
    )
    group.addoption("--memleak-output", metavar="FILE", help="keep the recording there, for `report`")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Returns None to let pytest run normally."""
    if not config.getoption("--memleak") or os.environ.get(INNER):
        return None
    from memleak_android.host.errors import ExitCode
    from memleak_android.unwind.file_writing import temporary_folder

    with temporary_folder("memleak-pytest-") as temporary:
        recording = Path(config.getoption("--memleak-output") or Path(temporary) / "run.memleak")
        code = _measure(list(config.invocation_params.args), recording, follow=bool(_workers(config)))
        return _judge(recording, config) if code in (ExitCode.OK, ExitCode.INCOMPLETE) else code


def _workers(config: pytest.Config) -> object:
    """pytest-xdist runs tests in child processes."""
    return config.getoption("numprocesses", None)


def _measure(arguments: Sequence[str], recording: Path, follow: bool) -> int:
    # -P: import nothing from the working directory
    tool = [sys.executable, "-P", "-m", "memleak_android.host", "record", "-q", "-o", str(recording)]
    more = ["--follow"] if follow else []
    inner = ["--", sys.executable, *_import_options(), "-m", "pytest", *map(str, arguments)]
    return subprocess.run([*tool, *more, *inner], env={**os.environ, INNER: "1"}, check=False).returncode


def _import_options() -> list[str]:
    """The inner run imports from the working directory if the outer one does: `python -m pytest`, not `pytest`."""
    is_by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    return [] if is_by_module and not sys.flags.safe_path else ["-P"]


def _judge(recording: Path, config: pytest.Config) -> int:
    """The exit code of a failed inner run, else that of the leak verdict."""
    from memleak_android.host.analysis.pipeline import View
    from memleak_android.host.commands.values import LIMIT
    from memleak_android.host.errors import ExitCode, MemleakError
    from memleak_android.host.profile.gate import GateRules, judge
    from memleak_android.host.profile.suppressions import read_suppressions
    from memleak_android.host.recording.read import read_profile
    from memleak_android.host.reports.text.gate import failure_lines, verdict_line

    try:
        templates = [
            template
            for path in config.getoption("--memleak-suppressions")
            for template in read_suppressions(Path(path))
        ]
        profile = read_profile(recording, View())
    except MemleakError as error:
        print(f"memleak: {error}", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    rules = GateRules(LIMIT.convert(config.getoption("--memleak-limit"), None, None), templates)
    judged = judge(of_extensions(profile), rules)
    lines = failure_lines(judged) or [f"{verdict_line(judged.gate)}" if judged.gate else ""]
    print("\n".join(f"memleak: {line}" for line in lines), file=sys.stderr)
    failed = os.waitstatus_to_exitcode(profile.target.exit_status or 0)
    return failed or (ExitCode.LEAKS if failure_lines(judged) else ExitCode.OK)


def of_extensions(profile: Profile) -> Profile:
    """Only the sites of modules that are neither the interpreter's nor the system's; blocks without a stack stay."""
    from dataclasses import replace

    from memleak_android.host.profile.site_id import responsible_frame

    def is_native(module: str) -> bool:
        return not _INTERPRETER.fullmatch(module) and not module.startswith(_SYSTEM_FOLDERS)

    frames = ((site, responsible_frame(site.frames)) for site in profile.sites)
    kept = tuple(site for site, frame in frames if frame and frame.module and is_native(frame.module))
    return replace(profile, sites=kept)
