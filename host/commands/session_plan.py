"""From option groups to what a session takes: SessionOptions, and the app of --package."""

from collections.abc import Sequence
from pathlib import Path

import click

from memleak_android.host.commands.conflicts import kernel_groups
from memleak_android.host.commands.options import TargetOptions, TracingOptions
from memleak_android.host.errors import UsageError
from memleak_android.host.machine.adb.app import check_package
from memleak_android.host.pairs.schema import HEAP_SET, read_pair_sets
from memleak_android.host.tracers.agent.session_options import PairPlanner, SessionOptions
from memleak_android.host.tracers.android.device import AppRequest
from memleak_android.host.tracers.pairs.planning import SetsPlanner
from memleak_android.host.wire.blocks import STACK_BYTES_MAX

MAX_LIVE = 4_000_000
# Both the kernel's tables and its own bookkeeping are allocated beforehand: about 130 bytes for a block.
KERNEL_MAX_LIVE = 1_000_000


def session_options(
    command: Sequence[str] | None,
    target: TargetOptions,
    tracing: TracingOptions,
    symbol_dirs: Sequence[Path] = (),
) -> SessionOptions:
    """Raises UsageError for values that no session takes."""
    kernel = kernel_groups(target)
    return SessionOptions(
        pid=target.pid,
        command=tuple(command or ()),
        follow=target.follow,
        stack_bytes=min(tracing.stack_bytes, STACK_BYTES_MAX) // 8 * 8,
        sample_bytes=tracing.sample_bytes,
        every_stack=tracing.every_stack,
        extend_stacks=tracing.extend_stacks or tracing.stack_bytes > STACK_BYTES_MAX,
        max_frames=tracing.max_frames,
        unwind="cfi" if tracing.unwind == "auto" else tracing.unwind,
        max_live=tracing.max_live or (KERNEL_MAX_LIVE if kernel else MAX_LIVE),
        every_process=target.every_process,
        kernel=int(kernel),
        without_btf=target.without_btf,
        max_stacks=target.max_stacks or 0,
        missing_free_expected=bool(kernel) and tracing.wa_missing_free,
        mmap=tracing.mmap,
        python_objects=not tracing.no_python_objects,
        python_lines=not tracing.no_python_lines,
        perf_events=tracing.perf_events,
        without_multi=tracing.without_multi,
        object=tracing.library,
        symbols_prefix=tracing.symbols_prefix,
        pairs=_pair_planner(tracing, symbol_dirs),
    )


def app_request(target: TargetOptions) -> AppRequest | None:
    """The app of --package. Raises UsageError for --process, --launch and --wait without it."""
    if target.package is None:
        alone = {"--process": target.process, "--launch": target.launch, "--wait": target.wait}
        for option in (name for name, is_set in alone.items() if is_set):
            raise click.UsageError(f"{option} without --package; name the app by --package APP")
        return None
    if target.launch and target.wait:
        raise click.UsageError("both --launch and --wait; start the app by one of them")
    package = check_package(target.package)
    return AppRequest(package, target.process, target.user, target.launch, target.wait)


def _pair_planner(tracing: TracingOptions, symbol_dirs: Sequence[Path]) -> PairPlanner | None:
    """None without --pairs. Raises UsageError where nothing of the files can be used, or no pairs in this session."""
    if not set(tracing.pairs) - {HEAP_SET}:
        return None
    if tracing.tracer == "bcc":
        raise UsageError(
            "--pairs with --tracer bcc, which traces the allocator only",
            "use --tracer bpf, inline for functions whose code can be patched, or plt for functions called through slots",
        )
    if tracing.perf_events:
        raise UsageError("--pairs with --perf-events: pairs need the BPF ring buffer", "use one of them")
    return SetsPlanner(read_pair_sets(tracing.pairs), tuple(symbol_dirs))
