"""The options that several verbs share. Each group reaches its command as one frozen dataclass."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.values import (
    DURATION,
    EXISTING,
    FILE,
    LABEL,
    LIMIT,
    ONE_OR_MORE,
    PID,
    RATE,
    SHARE,
    SIZE,
    SPAN,
)
from memleak_android.host.profile.gate import GrowthLimit, LeakLimit
from memleak_android.host.profile.ownership import read_ownership
from memleak_android.host.profile.sort_orders import WEIGHTS, Sort
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.tracers.local.start import TracerName

SERIALS = "memleak_android.serials"  # in a context's meta: every --serial
_CLICK = "click"  # in a field's metadata: the decorator that declares it

F = TypeVar("F", bound=Callable[..., Any])


_EMPTY: dict[str, Any] = {"multiple": (), "is_flag": False, "count": 0}  # by kind of option


def option(declaration: str, type: Any = None, help: str | None = None, **more: Any) -> Any:
    """A field of an option group.

    declaration: names and placeholder as the help shows them, `-T, --top N`.
    more: for click.option.
    """
    names = [word.rstrip(",") for word in declaration.split()]
    metavar = None if names[-1].startswith("-") else names.pop()
    default = more.get("default", next((_EMPTY[each] for each in _EMPTY if more.get(each)), None))
    is_text = isinstance(default, str) or callable(default)  # click converts or calls it
    declare = partial(click.option, *names, type=type, help=help, metavar=metavar, **more)
    return field(default=MISSING if is_text else default, metadata={_CLICK: declare})


def flag(declaration: str, help: str, **more: Any) -> Any:
    return option(declaration, None, help, is_flag=True, **more)


def takes_options(function: F) -> Any:
    """Declares the options of the groups among the function's parameters, in their order, and passes the groups."""
    groups = {name: kind for name, kind in get_type_hints(function).items() if any(_declared(kind))}

    @wraps(function)
    def command(*arguments: Any, **values: Any) -> Any:
        made = {name: _collected(kind, values) for name, kind in groups.items()}
        return function(*arguments, **values, **made)

    for declare in reversed([each for kind in groups.values() for each in _declared(kind)]):
        command = declare(command)
    return command


def _declared(kind: Any) -> Iterator[Callable[[Any], Any]]:
    """The decorators of a group's options, and of the groups in it."""
    if not is_dataclass(kind):
        return
    hints = get_type_hints(kind)
    for each in fields(kind):
        if _CLICK in each.metadata:
            yield each.metadata[_CLICK](each.name)
        else:
            yield from _declared(hints[each.name])


def _collected(kind: Any, values: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    found = {
        each.name: values.pop(each.name) if _CLICK in each.metadata else _collected(hints[each.name], values)
        for each in fields(kind)
    }
    return kind(**found)


def _last_serial(context: click.Context, option: click.Parameter, serials: tuple[str, ...]) -> str | None:
    """`record` finds all of them in the context's meta."""
    context.meta[SERIALS] = serials
    if len(serials) > 1 and context.command.name != "record":
        raise click.UsageError(
            f"{len(serials)} times --serial; several devices at once are measured by `record`"
        )
    return serials[-1] if serials else None


def _only_pid(context: click.Context, option: click.Parameter, pids: tuple[int, ...]) -> int | None:
    if len(pids) > 1:
        raise click.UsageError(
            f"{len(pids)} times --pid; measure one, its children too by --follow, or every process by --all"
        )
    return pids[0] if pids else None


# Fields of several groups.
format_option = partial(option, "--format", help="By default what the name of OUT says, else text.")
out_option = partial(option, "-o OUT", FILE, "Write there, not to stdout.")
symbols_option = partial(
    option,
    "--symbols DIR",
    EXISTING,
    "Unstripped files, found by build-id: a folder, a file, an APK, .apks, AAB or zip.",
    multiple=True,
)
top_option = partial(
    option, "-T, --top", click.IntRange(0), "Places or stacks shown; 0 = all.", default=10, show_default=True
)
warmup_option = partial(option, "--warmup T", DURATION, "Judge growth from this time on.", default="0s")
cooldown_option = partial(
    option, "--cooldown T", DURATION, "Judge growth until this long before the end.", default="0s"
)
duration_option = partial(option, "--duration T", SPAN, "End after this time.")
count_option = partial(option, "--count N", ONE_OR_MORE, "End after N interval prints.")
package_option = partial(option, "-p, --package APP", None, "Attach to this app on a device.")
process_option = partial(option, "--process NAME", None, "Which of its processes: a name, or :remote.")
user_option = partial(option, "--user N", click.IntRange(0, 21473), "Android user.", default=0)
label_option = partial(
    option,
    "--label KEY=VALUE",
    LABEL,
    "Stored in the recording, to distinguish many (repeatable). version, model, api_level and abi replace unknown facts"
    " of the target.",
    multiple=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Of nearly every verb."""

    force: bool = flag("--force", "Overwrite existing files.")
    quiet: bool = flag("-q, --quiet", "No progress.")
    verbose: int = option("-v, --verbose", None, "Stacks and all notes; -vv: every frame.", count=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Names a device."""

    serial: str | None = option(
        "-s, --serial ID",
        None,
        "On this device (adb's serial; ANDROID_SERIAL).",
        multiple=True,
        callback=_last_serial,
    )
    usb: bool = flag("-d", "On the USB device.")
    tcp: bool = flag("-e", "On the emulator or TCP device.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Options that select the target, apart from a command behind `--`."""

    device: DeviceOptions
    pid: int | None = option(
        "--pid N", PID, "Attach to this process.", multiple=True, default=None, callback=_only_pid
    )
    package: str | None = package_option()
    process: str | None = process_option()
    user: int = user_option()
    launch: bool = flag("--launch", "Start the app anew and measure from its start.")
    wait: bool = flag("--wait", "Wait until a process of the app runs.")
    every_process: bool = flag(
        "--all",
        "Every process of this machine, future ones included, with a table of them (docs/use/every-process.md).",
    )
    follow: bool = flag("--follow", "Measure its child processes too, those that run already and later ones.")
    kernel: bool = flag(
        "--kernel",
        "The kernel's own memory, of the whole machine or on behalf of --pid, --package or a command"
        " (docs/use/kernel-memory.md).",
    )
    percpu: bool = flag("--percpu", "The kernel's per-CPU memory, alone or in addition to --kernel.")
    without_btf: bool = flag("--without-btf", "--kernel as on kernels without BTF.", hidden=True)
    max_stacks: int | None = option(
        "--max-stacks N",
        click.IntRange(1, 1 << 20),
        "--kernel: kernel stacks that are kept apart at a time.",
        hidden=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingOptions:
    """How allocations are traced. Sizes in bytes, times in nanoseconds."""

    tracer: TracerName = option(
        "--tracer",
        click.Choice(["auto", "bpf", "preload", "plt", "inline", "bcc"]),
        "auto: the shim for Python and where bpf is not allowed (preload for a command, plt for a running process), else bpf."
        " bcc: compiled here by python3-bpfcc.",
        default="auto",
        show_default=True,
    )
    unwind: str = option(
        "--unwind",
        click.Choice(["auto", "cfi", "fp", "both"]),
        "How stacks are walked: by unwind information (auto), by frame pointers, or by both, compared.",
        default="auto",
        show_default=True,
    )
    stack_bytes: int = option(
        "--stack-bytes CAP",
        SIZE,
        "At most this much of a stack, below 64k; by default up to 1 MiB.",
        default=1 << 20,
    )
    sample_bytes: int = option(
        "--sample-bytes N",
        SIZE,
        "One sample per N bytes; 0 = every allocation. BPF always counts every allocation and sends each stack once.",
        default=0,
    )
    max_frames: int = option(
        "--max-frames N",
        click.IntRange(64, 1 << 16),
        "Of longer stacks leave out rounds of recursions, then the middle.",
        default=1024,
        show_default=True,
    )
    every_stack: bool = flag("--every-stack", "Send the stack of every allocation, not once per stack key.")
    extend_stacks: bool = flag(
        "--extend-stacks", "Slices of --stack-bytes, and what is above them.", hidden=True
    )
    max_live: int | None = option(
        "--max-live N",
        click.IntRange(1, 2**31),
        "Capacity of the live table in blocks: 4,000,000, for the kernel 1,000,000.",
    )
    library: str | None = option("-O, --object LIB", None, "The library that holds the allocator.")
    symbols_prefix: str = option(
        "--symbols-prefix P", None, "Prefix of the allocator's functions (je_).", default=""
    )
    wa_missing_free: bool = flag(
        "--wa-missing-free",
        "Always on: a block ends when its address is allocated again. With --kernel: do not count such frees as lost.",
    )
    mmap: bool = flag("--mmap", "List the regions of mmap that do not grow, too.")
    no_python_objects: bool = flag(
        "--no-python-objects", "Leave out the objects of Python's own allocators, which the shim counts."
    )
    no_python_lines: bool = flag("--no-python-lines", "Leave out functions and lines in Python from stacks.")
    pairs: tuple[str, ...] = option(
        "--pairs FILE|SET",
        None,
        "Trace what a TOML file describes instead of malloc, or a set: cxx, fd, malloc … (docs/use/pairs.md).",
        multiple=True,
    )
    perf_events: bool = flag("--perf-events", "BPF as on kernels without its ring buffer.", hidden=True)
    without_multi: bool = flag(
        "--without-multi", "A perf event for each probe, as before Linux 6.10.", hidden=True
    )
    duration: int | None = duration_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """Options that select the contents of a report."""

    min_size: int = option("-z, --min-size", SIZE, "Show only blocks of at least this size.", default=0)
    max_size: int = option(
        "-Z, --max-size", SIZE, "Show only blocks of at most this size.", default=2**64 - 1
    )
    top: int = top_option()
    show_allocs: bool = flag("-a, --show-allocs", "Show each block of a stack.")
    combined_only: bool = flag("--combined-only", "Only sums per stack, no single blocks.")
    sort: Sort = option(
        "--sort",
        click.Choice(list(WEIGHTS)),
        "Order of stacks. peak: by what they held at the peak. churn: by what they freed.",
        default="size",
        show_default=True,
    )
    warmup: int = warmup_option()
    cooldown: int = cooldown_option()
    limit: int = option(
        "--limit SIZE",
        SIZE,
        "Say when a growing program will be this large, beside the limits of control groups and ulimit.",
        default=0,
    )

    mine: tuple[str, ...] = option(
        "--mine PATTERN",
        None,
        "Your code: a source file, a module, or a folder of some. Its innermost function is named as the place.",
        multiple=True,
    )
    not_mine: tuple[str, ...] = option(
        "--not-mine PATTERN",
        None,
        'Others\' code: its callers are named. Both may stand in memleak.toml: mine = ["src"].',
        multiple=True,
    )

    def __post_init__(self) -> None:
        if self.min_size > self.max_size:
            raise click.UsageError(f"-z {self.min_size} and -Z {self.max_size} leave no size; exchange them")

    def view(self, max_lost: float, *, needs_blocks: bool) -> View:
        """Returns the analysis's settings. needs_blocks: the report's format lists single blocks. Raises UsageError."""
        return View(
            min_size=self.min_size,
            max_size=self.max_size,
            show_allocs=self.show_allocs or needs_blocks,
            max_lost=max_lost,
            warmup_ns=self.warmup,
            cooldown_ns=self.cooldown,
            limit=self.limit,
            ownership=read_ownership(self.mine, self.not_mine),
        )

    def report_options(self, source_root: str = "", *, verbose: int = 0) -> ReportOptions:
        return ReportOptions(
            self.top,
            self.show_allocs,
            self.sort,
            self.combined_only,
            source_root=source_root,
            verbose=verbose,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Symbols, and what makes a result fail."""

    symbols: tuple[Path, ...] = symbols_option()
    fail_on_leak: LeakLimit | None = option(
        "--fail-on-leak BYTES[,COUNT]", LIMIT, "Exit with 23 when more is held."
    )
    fail_on_growth: GrowthLimit | None = option(
        "--fail-on-growth RATE",
        RATE,
        "Exit with 23 when more grows: 100K/min, 1MB/h or, of a scenario, 64/run.",
    )
    baseline: Path | None = option(
        "--baseline REPORT",
        FILE,
        "Count only growth beyond this report.json or recording; without a limit any growth counts.",
    )
    suppressions: tuple[Path, ...] = option(
        "--suppressions FILE",
        FILE,
        "Sites that do not count, in LeakSanitizer's syntax (leak:PATTERN).",
        multiple=True,
    )
    gen_suppressions: Path | None = option(
        "--gen-suppressions FILE", FILE, "Write suppressions for all sites that count."
    )
    max_lost: float = option("--max-lost SHARE", SHARE, "Above this: incomplete, exit 6.", default=0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """What the exit status of a measurement is."""

    exit_status: Literal["own", "ours"] = option(
        "--exit-status",
        click.Choice(["own", "ours"]),
        "own: that of CMD, unless a limit is exceeded or cannot be judged. ours: 0, 6 or 23, whatever CMD's is.",
        default="own",
        show_default=True,
    )
    fail_on_incomplete: bool = flag("--fail-on-incomplete", "Exit with 6 when the measurement is incomplete.")
