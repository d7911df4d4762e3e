"""`snoop`: every call of chosen functions, and how long each took."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from memleak_android.host.commands.conflicts import refuse_two_targets
from memleak_android.host.commands.options import (
    CommonOptions,
    count_option,
    duration_option,
    flag,
    option,
    symbols_option,
    takes_options,
)
from memleak_android.host.commands.results import STDOUT, only_the_report_on_stdout
from memleak_android.host.commands.target import SnoopMachine, SnoopTarget, explained, snoop_machine
from memleak_android.host.commands.values import FILE, ONE_OR_MORE, SPAN
from memleak_android.host.console import Invocation, say
from memleak_android.host.errors import ExitCode, OutputExistsError, UsageError
from memleak_android.host.session.session import stop_on_interrupt
from memleak_android.host.snoop.agent_lines import SnoopOptions
from memleak_android.host.snoop.call_stacks import CallStacks
from memleak_android.host.snoop.filters import parse_filter
from memleak_android.host.snoop.formats import CallFormat, parse_call_format
from memleak_android.host.snoop.json_lines import ChromeTrace, JsonLines
from memleak_android.host.snoop.live_print import LivePrint
from memleak_android.host.snoop.placing import Returns, SnoopedFunction, SnoopPlan
from memleak_android.host.snoop.planning import Requests, plan_snoop
from memleak_android.host.snoop.session import CallSink, SnoopSession, SnoopTimes
from memleak_android.host.snoop.statistics import FunctionStatistics, histogram_lines, table_lines
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.host.tracers.functions.requests import parse_request, read_group_file
from memleak_android.unwind.cfi.table_cache import TableCache
from memleak_android.unwind.file_writing import create

_STACK_BYTES = 16384  # of one call, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOptions:
    """Options for the probed functions, and how their values are decoded."""

    functions: tuple[str, ...] = option(
        "-f, --function LIB:FUNC",
        None,
        "A function: a name, demangled or not, a glob, or +0xOFFSET. Without LIB: of the program itself.",
        multiple=True,
    )
    groups: tuple[Path, ...] = option("--group FILE", FILE, "Functions from a TOML file.", multiple=True)
    formats: tuple[str, ...] = option(
        "--arguments [GLOB=]FORMAT", None, "How values are shown: int,str,buf64,fd->int.", multiple=True
    )
    filters: tuple[str, ...] = option(
        "--filter [GLOB:]ARG<OP>N", None, "Only calls like arg0>4096.", multiple=True
    )
    max_matches: int = option(
        "--max-matches N",
        click.IntRange(1, 4096),
        "Functions that one --function may match.",
        default=256,
        show_default=True,
    )
    returns: Returns = option(
        "--returns",
        click.Choice(["auto", "trampoline", "instructions", "none"]),
        "How returns are probed: by the kernel's trampoline, which exceptions cannot pass, or at the return"
        " instructions.",
        default="auto",
        show_default=True,
    )
    symbols: tuple[Path, ...] = symbols_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """Limits of the probes, and kernel features that they do without."""

    rate: int | None = option("--rate N", ONE_OR_MORE, "Show at most N calls of a function a second.")
    without_multi: bool = flag(
        "--without-multi", "One perf event a probe, as before Linux 6.10.", hidden=True
    )
    without_atomics: bool = flag("--without-atomics", "As before Linux 5.12.", hidden=True)
    without_cookies: bool = flag("--without-cookies", "By address, as before Linux 5.15.", hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Options for the calls shown, and their output file."""

    entries: bool = flag("--entries", "A line at the entry too.")
    stacks: bool = flag("--stacks", "The stack of each call that is shown.")
    statistics: bool = flag("--statistics", "Only count in the kernel and show no call.")
    histogram: bool = flag("--histogram", "The latency of each function by powers of two.")
    json: Path | None = option(
        "--json [FILE]",
        FILE,
        "Every event as a line of JSON; without a FILE, or with -, to stdout.",
        is_flag=False,
        flag_value="-",
    )
    trace_format: str | None = option(
        "--format", click.Choice(["chrome"]), "A trace for chrome://tracing or Perfetto; needs -o."
    )
    output: Path | None = option("-o FILE", FILE, "The file of --format.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    """When statistics are printed, and when the session ends. Nanoseconds."""

    interval: int | None = option("--interval T", SPAN, "Print the statistics every T.")
    count: int | None = count_option()
    duration: int | None = duration_option()


@dataclass(slots=True)
class _Outputs:
    """text: whether lines for people go to stdout. json: gets the statistics too."""

    sinks: list[CallSink]
    text: bool
    json: JsonLines | None = None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_options
@click.pass_obj
def snoop(
    invocation: Invocation,
    /,
    target: SnoopTarget,
    choice: FunctionOptions,
    probing: ProbeOptions,
    output: OutputOptions,
    times: TimeOptions,
    common: CommonOptions,
) -> int:
    """Shows every call of chosen functions: arguments, return value, latency; and statistics at the end."""
    _check_target(invocation.command, target)
    _check_output(target, choice, output, times)
    command = invocation.command or ()
    begin = time.monotonic()
    with explained(command), ExitStack() as files:
        machine = snoop_machine(command, target, files)
        processes = machine.files(machine.pids, command)
        pids = tuple(process[0].pid for process in processes if process and process[0].pid)
        plan, problems = plan_snoop(_requests(choice), processes, machine.opened, machine.can_unwind)
        for sentence in problems:
            say(sentence)
        said = () if common.quiet else command
        outputs = _outputs(output, plan.functions, machine.names(pids), said, common.force, files)
        options = SnoopOptions(
            pids=pids,
            command=command,
            threads=target.threads,
            events=bool(outputs.sinks),
            rate=probing.rate or 0,
            follow=target.follow,
            stack_bytes=_STACK_BYTES if output.stacks else 0,
            without_multi=probing.without_multi,
            without_cookies=probing.without_cookies,
            without_atomics=probing.without_atomics,
        )
        session = SnoopSession(
            machine.start(options, plan),
            plan,
            outputs.sinks,
            SnoopTimes(times.duration, times.interval, times.count),
            on_armed=lambda n: None if common.quiet else _say_armed(plan, n, time.monotonic() - begin),
            on_interval=lambda found: _print_statistics(found, outputs, output.histogram),
            on_problem=say,
            stacks=_call_stacks(machine, choice.symbols, files) if output.stacks else None,
        )
        with stop_on_interrupt(session.stop):
            session.run()
        if outputs.json is not None:
            outputs.json.write_end(session.statistics, session.lost)
        _print_statistics(session.statistics, outputs, output.histogram)
        for sentence in session.missing:
            say(sentence)
    return ExitCode.INCOMPLETE if set(session.lost) - {"missed_entry"} else 0


def _check_target(command: Sequence[str] | None, target: SnoopTarget) -> None:
    refuse_two_targets(command, bool(target.pids), target.package)
    if not command and not target.pids and not target.package:
        raise click.UsageError("no target; name one by --pid N, --package APP or -- CMD")


def _check_output(
    target: SnoopTarget, choice: FunctionOptions, output: OutputOptions, times: TimeOptions
) -> None:
    if not choice.functions and not choice.groups:
        raise click.UsageError("no function; name one by --function LIB:FUNC or --group FILE")
    if bool(output.trace_format) != bool(output.output):
        raise click.UsageError("--format and -o belong together; write --format chrome -o FILE")
    if output.statistics and (output.json or output.trace_format or output.stacks):
        raise click.UsageError("--statistics shows no call; drop it for --json, --format and --stacks")
    if target.follow and len(target.pids) > 1:
        raise click.UsageError("--follow with several processes; follow one")
    if target.follow and output.stacks:
        raise click.UsageError("--follow and --stacks; the mappings of children are unknown, use one of them")
    if times.count is not None and times.interval is None:
        raise click.UsageError("--count without --interval; say how often by --interval T")


def _requests(choice: FunctionOptions) -> Requests:
    requests = [parse_request(text) for text in choice.functions]
    for path in choice.groups:
        requests += read_group_file(path)
    return Requests(
        tuple(requests),
        tuple(_format(text) for text in choice.formats),
        tuple(parse_filter(text) for text in choice.filters),
        choice.returns,
        choice.max_matches,
        choice.symbols,
    )


def _format(text: str) -> tuple[str, CallFormat]:
    glob, equals, words = text.partition("=")
    return (glob, parse_call_format(words)) if equals else ("*", parse_call_format(text))


def _outputs(
    output: OutputOptions,
    functions: Sequence[SnoopedFunction],
    names: Mapping[int, str],
    said: Sequence[str],
    force: bool,
    files: ExitStack,
) -> _Outputs:
    """said: see only_the_report_on_stdout()."""
    outputs = _Outputs([], text=True)
    if output.json is not None:
        is_stdout = output.json == STDOUT
        file = files.enter_context(
            only_the_report_on_stdout(said) if is_stdout else _create(output.json, force)
        )
        outputs.json = JsonLines(functions, file)
        outputs.sinks.append(outputs.json)
        outputs.text = not is_stdout
    if output.output is not None:
        file = files.enter_context(_create(output.output, force))
        outputs.sinks.append(ChromeTrace(functions, names, file))
    if not outputs.sinks and not output.statistics:
        outputs.sinks.append(LivePrint(functions, sys.stdout, output.entries))
    return outputs


def _call_stacks(machine: SnoopMachine, symbol_dirs: Sequence[Path], files: ExitStack) -> CallStacks:
    cache = default_cache_dir()
    modules = files.enter_context(closing(ModuleFiles(machine.finder, TableCache(cache / "tables"))))
    return CallStacks(modules, Symbolizer(symbol_dirs, cache))


def _create(path: Path, force: bool) -> BinaryIO:
    try:
        return open(create(path, force), "wb")
    except FileExistsError:
        raise OutputExistsError(path) from None
    except OSError as error:
        raise UsageError(f"could not write {path}: {error.strerror}") from None


def _say_armed(plan: SnoopPlan, n_probed: int, seconds: float) -> None:
    line = f"{n_probed:,} of {plan.n_entries:,} functions probed after {seconds:.1f} s"
    if plan.n_single_stepped:
        line += f"; {plan.n_single_stepped} functions cost several times more, their first instructions are single-stepped"
    say(f"{line}; Ctrl-C ends")


def _print_statistics(
    functions: Sequence[FunctionStatistics], outputs: _Outputs, with_histogram: bool
) -> None:
    if not outputs.text:
        return
    lines = table_lines(functions)
    if with_histogram:
        lines += [line for function in functions for line in histogram_lines(function)]
    print("\n".join(lines), flush=True)
