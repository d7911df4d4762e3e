"""Selects the tracer for a target on this machine, and starts it."""

import json
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Literal
from urllib.parse import quote

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError, TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.capabilities import bpf_refusal
from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel
from memleak_android.host.machine.local.loader import command_objects, interpreter_of, resolve_command
from memleak_android.host.machine.local.machine import probe_local
from memleak_android.host.machine.local.process import LoadedObject, LocalProcess
from memleak_android.host.profile.runtime_sites import PYTHON_INTERFACE, PYTHON_MODULE
from memleak_android.host.tracers.agent.session import AgentSession
from memleak_android.host.tracers.agent.session_options import (
    PairPlan,
    PairPlanner,
    ProbedFile,
    SessionOptions,
)
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.local import attach, every_process, kernel
from memleak_android.host.tracers.local.bpf import plan_session
from memleak_android.host.tracers.probes.allocator import FUNCTION_NUMBERS

TracerName = Literal["auto", "bpf", "preload", "plt", "inline", "bcc"]
Chosen = Literal["bpf", "preload", "plt", "inline", "bcc"]
_BCC_ARCH = "x86_64"  # accounting.c records its registers
_BCC_COMPILING_S = 240.0
# Names in the program's dynamic symbols, whether its runtime is linked in or a library (compiler-rt, libsanitizer).
_SANITIZERS = {
    b"__asan_init": "AddressSanitizer",
    b"__hwasan_init": "HWAddressSanitizer",
    b"__msan_init": "MemorySanitizer",
    b"__tsan_init": "ThreadSanitizer",
}


def choose_tracer(name: TracerName, pid: int | None, refusal: str) -> Chosen:
    """refusal: bpf_refusal() of this machine. `auto` is bpf if allowed, else the shim. Raises TracerError."""
    if name != "auto" and name != "bpf":
        return name
    if not refusal:
        return "bpf"
    if name == "auto":
        return shim_route(pid)
    subject = f"process {pid} cannot be traced" if pid else "the bpf tracer cannot run"
    raise TracerError(
        f"{subject}: {refusal}",
        "run as root, or drop --tracer bpf to use the shim"
        if pid
        else "run as root, or start the program with --tracer preload -- CMD",
    )


def shim_route(pid: int | None) -> Literal["preload", "plt"]:
    return "preload" if pid is None else "plt"


def start_tracer(name: TracerName, options: SessionOptions) -> AgentSession:
    """Raises TracerError or TargetError."""
    if options.kernel:
        return kernel.start(options)
    if options.every_process:
        return every_process.start(options)
    if name != "auto" and name != "bpf":
        return _start(name, options)
    refusal = bpf_refusal(probe_local())
    chosen = choose_tracer(name, options.pid, refusal)
    reason = instead_of_bpf(refusal, options.pairs is not None, name)
    second_choice: Literal["", "bpf"] = ""
    if name == "auto" and chosen == "bpf" and _is_python(options):
        chosen, second_choice = shim_route(options.pid), "bpf"
        reason = "the shim counts Python's objects, the BPF tracer does not"
    session = _start(chosen, options)
    session.fallback, session.second_choice = reason, second_choice
    return session


def _is_python(options: SessionOptions) -> bool:
    """Whether the target runs Python, and the shim can trace it."""
    only_bpf = options.object or options.symbols_prefix or options.perf_events or options.without_multi
    if options.pairs or only_bpf or not options.python_objects:
        return False
    if options.pid is not None:
        program, *libraries = LocalProcess.open(options.pid).loaded_objects() or [LoadedObject("", "")]
        paths = [
            program.open_path,
            *(one.open_path for one in libraries if PYTHON_MODULE.fullmatch(one.path)),
        ]
        return _has_python_interface(paths)
    try:
        _check_program(options.command[0])
        words = interpreter_of(options.command[0], os.environ)
        # A script of this name chooses an interpreter (pyenv's shims), or env(1) finds it by PATH.
        if words and any(PYTHON_MODULE.fullmatch(word) for word in (options.command[0], *words)):
            return True
        program, *libraries = command_objects(options.command, os.environ)
        paths = [program.path, *(one.path for one in libraries if PYTHON_MODULE.fullmatch(one.path))]
        return _has_python_interface(paths)
    except (OSError, TargetError):
        return False


def _has_python_interface(paths: list[str]) -> bool:
    try:
        return any(ElfFile(path).dynamic_functions({PYTHON_INTERFACE}) for path in paths)
    except (OSError, TargetError):
        return False


def instead_of_bpf(refusal: str, has_pairs: bool, name: TracerName = "auto") -> str:
    """Why the shim is used and not BPF, and what that means for --pairs; "" for BPF. name: of the requested tracer."""
    if not refusal or not has_pairs or name == "inline":
        return refusal
    return f"{refusal}; of --pairs, the shim traces exported functions that are called through the linker"


def _start(chosen: Chosen, options: SessionOptions) -> AgentSession:
    if chosen == "bpf":
        return _start_bpf(options)
    if chosen == "bcc":
        return _start_bcc(options)
    if chosen == "preload":
        return _start_preload(options)
    return attach.start(options, chosen)


def _start_bpf(options: SessionOptions) -> AgentSession:
    agent = find_binary("memleakd", local_arch())
    plan = plan_session(options)
    lines = [*options.bpf_lines(), *plan.lines()]
    starts_command = options.pid is None
    channel = LocalChannel([str(agent), "bpf"], give_stdio=starts_command)
    session = AgentSession("bpf", channel, [*lines, *([USER_STDIO_LINE] if starts_command else [])])
    session.notes = plan.notes
    session.answer_functions(plan.pairs, plan.unplaced)
    session.about = plan.about()
    return session


def _start_preload(options: SessionOptions) -> AgentSession:
    """Starts a command with the shim before its own libraries. Needs no rights."""
    if options.pid is not None:
        raise TracerError(
            f"--tracer preload cannot attach to process {options.pid}", "start the program with -- CMD"
        )
    if options.object or options.symbols_prefix:
        raise TracerError(
            "-O and --symbols-prefix need the bpf tracer: the shim is found by the functions' own names",
            "run as root",
        )
    _check_program(options.command[0])
    _check_valgrind(options.command)
    arch = local_arch()
    agent, shim = find_binary("memleakd", arch), find_binary("libmemleak.so", arch)
    pairs = _plan_pairs(options.command, options.pairs) if options.pairs else None
    lines = [*options.lines(), f"shim {quote(os.fsencode(shim), safe='/')}", *options.pair_lines(pairs)]
    channel = LocalChannel([str(agent), "preload"], give_stdio=True)
    session = AgentSession("preload", channel, [*lines, USER_STDIO_LINE])
    session.answer_functions(pairs)
    return session


def _plan_pairs(command: Sequence[str], planner: PairPlanner) -> PairPlan:
    loaded = command_objects(command, os.environ)
    return planner.plan([ProbedFile(0, one.path, one.open_path) for one in loaded], by="slots")


def _check_program(command: str) -> None:
    """Raises TargetError for a program whose linker would run it without the shim, and for one with a sanitizer."""
    try:
        elf = ElfFile(resolve_command(command, os.environ))
        symbols = elf.dynamic_symbols()
    except (OSError, TargetError):
        return  # the agent will report why it cannot be started
    if not elf.is_64_bit:
        raise TargetError(f"{elf.path} is 32-bit, which cannot be traced", "use a 64-bit build of it")
    if rights := _other_rights(elf.path):
        raise TargetError(
            f"{elf.path} runs with other rights than yours ({rights}), and its loader ignores LD_PRELOAD",
            "use --tracer bpf as root, or run it as the user whose rights it takes",
        )
    for function, name in _SANITIZERS.items():
        if symbols and b"\0%s\0" % function in symbols[1]:
            raise TargetError(
                f"{elf.path} is built with {name}, whose allocator has to come before any other library",
                "use --tracer bpf, or a build without it",
            )


def _check_valgrind(command: Sequence[str]) -> None:
    """Raises TargetError for memcheck, its default tool, which takes the shim's functions, too, for ones to be replaced."""
    tools = [word for word in command[1:] if word.startswith("--tool=")]
    if os.path.basename(command[0]) == "valgrind" and tools[-1:] in ([], ["--tool=memcheck"]):
        raise TargetError(
            "valgrind's memcheck replaces malloc, so no tracer sees it", "run the program without valgrind"
        )


def _other_rights(path: str) -> str:
    """What makes the kernel set AT_SECURE for a program (getauxval(3)); "" = nothing. Root's own rights are none of it."""
    status = os.stat(path)
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return ""
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return "set-user-ID"
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getegid():
        return "set-group-ID"
    with suppress(OSError):  # a file without the attribute, or a file system without any
        if os.geteuid() and os.getxattr(path, "security.capability"):
            return "file capabilities"
    return ""


def _start_bcc(options: SessionOptions) -> AgentSession:
    """Our accounting, compiled on this machine by Debian's python3-bpfcc. Raises TracerError, TargetError."""
    check_bcc(options)
    plan = plan_session(options)
    request = {
        "pid": options.pid,
        "command": options.command,
        "constants": {
            "MIN_SIZE": options.min_size,
            "MAX_SIZE": options.max_size,
            "MAX_LIVE": options.max_live,
            "EVERY_STACK": int(options.every_stack),
        },
        "probes": [asdict(probe) | {"number": FUNCTION_NUMBERS[probe.function]} for probe in plan.probes],
    }
    argv = [sys.executable, "-P", "-m", "memleak_android.host.tracers.bcc"]
    channel = LocalChannel(argv, give_stdio=options.pid is None)
    session = AgentSession("bcc", channel, [json.dumps(request)], loading_s=_BCC_COMPILING_S)
    session.notes, session.about = plan.notes, plan.about()
    session.answer_functions(None, plan.unplaced)
    return session


def check_bcc(options: SessionOptions) -> None:
    """Raises TracerError for options that this tracer lacks, and if bcc or kernel headers are missing."""
    unable = {
        "--follow": options.follow,
        "--mmap": options.mmap,
        "--trace": options.events,
        "--perf-events": options.perf_events,
        "--pairs": options.pairs is not None,
        "--unwind fp": options.unwind != "cfi",
    }
    for name, is_wanted in unable.items():
        if is_wanted:
            raise TracerError(f"--tracer bcc has no {name}", "use --tracer bpf with it")
    if local_arch() != _BCC_ARCH:
        raise TracerError(
            f"--tracer bcc runs on {_BCC_ARCH}, this machine is {local_arch()}", "use --tracer bpf"
        )
    if reason := bpf_refusal(probe_local()):
        raise TracerError(f"the bcc tracer cannot run: {reason}", "run as root")
    if reason := debian_module.refusal():
        raise TracerError(reason, debian_module.INSTALL)
    debian_module.kernel_headers()
