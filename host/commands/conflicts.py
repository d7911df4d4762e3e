"""Options that exclude each other, checked before anything is measured."""

from collections.abc import Sequence

import click

from memleak_android.host.commands.options import TargetOptions, TracingOptions
from memleak_android.host.profile.gate import GrowthLimit
from memleak_android.host.tracers.local.kernel import KernelGroup


def refuse_conflicts(
    command: Sequence[str] | None,
    target: TargetOptions,
    tracing: TracingOptions,
    *,
    reachability: bool = False,
    events_option: str = "",
) -> None:
    """Raises UsageError. events_option: the option that asks for every call, "" where it is not set."""
    _check_target(command, target)
    if target.kernel or target.percpu:
        _check_kernel(
            command, target, tracing, {"--reachability": reachability, events_option: events_option}
        )
    if target.every_process:
        _check_all(command, target, tracing, reachability)


def kernel_groups(target: TargetOptions) -> KernelGroup:
    """No bit: the session is not about the kernel."""
    groups = KernelGroup.SLAB | KernelGroup.PAGES if target.kernel else KernelGroup(0)
    return groups | KernelGroup.PERCPU if target.percpu else groups


def refuse_limit_by_run(limit: GrowthLimit | None, scenario: str | None) -> None:
    """Raises UsageError for a growth limit per run in a session without runs."""
    if limit is not None and limit.is_by_run and scenario is None:
        raise click.UsageError("--fail-on-growth by run without --scenario; write it by time: 1MB/min")


def refuse_two_targets(command: Sequence[str] | None, has_pid: bool, package: str | None) -> None:
    """Raises UsageError, also for an empty command."""
    if command is not None and not command:
        raise click.UsageError("no command behind --; write -- CMD and its arguments")
    if command and has_pid:
        raise click.UsageError("both --pid and a command; name one target")
    if package and (command or has_pid):
        raise click.UsageError(f"--package and {'a command' if command else '--pid'}; name one target")


def _check_target(command: Sequence[str] | None, target: TargetOptions) -> None:
    refuse_two_targets(command, target.pid is not None, target.package)
    is_whole_machine = target.kernel or target.percpu or target.every_process
    if not command and target.pid is None and not target.package and not is_whole_machine:
        raise click.UsageError("no target; name one by --pid N, --package APP, --all or -- CMD")


def _check_kernel(
    command: Sequence[str] | None, target: TargetOptions, tracing: TracingOptions, others: dict[str, object]
) -> None:
    option, device = "--kernel" if target.kernel else "--percpu", target.device
    if target.follow and command is not None:
        raise click.UsageError(f"{option} with --follow; drop it, a command's children are counted with it")
    if command is not None and (device.serial or device.usb or device.tcp):
        raise click.UsageError(f"{option} and a command on a device; start it there and name it by --pid")
    refuse_first(
        option,
        {
            "--launch": target.launch,
            "--follow": target.follow,
            "--pairs": tracing.pairs,
            "--mmap": tracing.mmap,
            **others,
            "--perf-events": tracing.perf_events,
            "--tracer": tracing.tracer not in ("auto", "bpf"),
            "--unwind": tracing.unwind not in ("auto", "cfi"),
        },
    )


def _check_all(
    command: Sequence[str] | None, target: TargetOptions, tracing: TracingOptions, reachability: bool
) -> None:
    if command is not None:
        raise click.UsageError("--all and a command; --all is every process of this machine")
    refuse_first(
        "--all",
        {
            "--pid": target.pid,
            "--package": target.package,
            "--serial": target.device.serial,
            "-d": target.device.usb,
            "-e": target.device.tcp,
            "--follow": target.follow,
            "--kernel": target.kernel,
            "--percpu": target.percpu,
            "--pairs": tracing.pairs,
            "--mmap": tracing.mmap,
            "--reachability": reachability,
            "--perf-events": tracing.perf_events,
            "--object": tracing.library,
            "--symbols-prefix": tracing.symbols_prefix,
            "--tracer": tracing.tracer not in ("auto", "bpf"),
        },
    )


def refuse_first(option: str, excluded: dict[str, object]) -> None:
    """Raises UsageError. excluded: what `option` does not allow, and whether it is set."""
    other = next((name for name, is_set in excluded.items() if is_set), "")
    if other:
        raise click.UsageError(f"{option} and {other} exclude each other; use one of them")
