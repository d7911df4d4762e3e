"""Functions of one file → probes, for the heap's functions and those of --pairs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.agent.session_options import Probe
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.placement import (
    FUNCTION_BYTES_MAX,
    SINGLE_STEPPED,
    Placement,
    jumps_from_outside,
    place_entry,
)
from memleak_android.unwind.elf_headers import Segment

_FIRST_BYTES = 16  # the longest instruction


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """A function to be probed.

    function: its name in the session.
    symbol: its name in remarks.
    size: in bytes, 0 = unknown.
    n_arguments: number of arguments that the probe reads.
    has_return: whether its return is probed too.
    """

    function: str
    symbol: str
    file_offset: int
    size: int
    n_arguments: int
    has_return: bool


def probes_at(elf: ElfFile, path: str, sites: Sequence[ProbeSite]) -> tuple[list[Probe], list[str]]:
    """A probe and a remark for each site. path: of the file for the agent. Raises TargetError for sites outside of code."""
    texts = [_text_of(elf, path, site) for site in sites]
    jumps = _jumps_from_outside(elf, sites, texts)
    probes, notes = [], []
    for site, text, jumped_to in zip(sites, texts, jumps, strict=True):
        placement = _place(elf, site, text, jumped_to)
        offset = site.file_offset + placement.offset
        probes.append(
            Probe(
                function=site.function,
                path=path,
                function_offset=site.file_offset,
                entry_offset=offset,
                return_offset=offset if site.has_return else None,
                text_low=text.file_offset,
                text_high=text.file_offset + text.file_bytes,
                entry_cost=placement.cost,
                return_cost=placement.cost if site.has_return else "",
                identity=elf.identity if path == elf.path else None,
            )
        )
        notes.append(f"{site.symbol}+{placement.offset:#x}: {placement.cost}, {placement.reason}")
    return probes, notes


def _text_of(elf: ElfFile, path: str, site: ProbeSite) -> Segment:
    text = elf.text_segment(site.file_offset)
    if text is None:
        raise TargetError(f"{path}: {site.symbol} at {site.file_offset:#x} is not in an executable segment")
    return text


def _place(elf: ElfFile, site: ProbeSite, text: Segment, jumped_to: set[int]) -> Placement:
    arch = PROBED_ARCHES[elf.machine]
    if not site.size:
        first = next(iter(arch.decode(elf.bytes_from(site.file_offset, _FIRST_BYTES), 0)), None)
        is_cheap = first is not None and arch.is_cheap(first)
        return Placement(0, arch.cheap if is_cheap else SINGLE_STEPPED, "its size is unknown")
    return place_entry(
        arch,
        elf.slice(site.file_offset, min(_end(site, text) - site.file_offset, FUNCTION_BYTES_MAX + 1)),
        frozenset(arch.arguments[: site.n_arguments]),
        skip_no_op=not site.has_return,
        jumped_to=jumped_to,
    )


def _end(site: ProbeSite, text: Segment) -> int:
    return min(site.file_offset + site.size, text.file_offset + text.file_bytes)


def _jumps_from_outside(elf: ElfFile, sites: Sequence[ProbeSite], texts: Sequence[Segment]) -> list[set[int]]:
    """By site. A text is scanned once, and only if a probe would move."""
    found: list[set[int]] = [set() for _ in sites]
    by_text: dict[Segment, list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        by_text[text].append(i)
    for text, inside in by_text.items():
        if not any(_place(elf, sites[i], text, set()).offset for i in inside):
            continue
        low = text.file_offset
        ranges = [(sites[i].file_offset - low, _end(sites[i], text) - low) for i in inside]
        hits = jumps_from_outside(PROBED_ARCHES[elf.machine], elf.view(low, text.file_bytes), ranges)
        for i, hit in zip(inside, hits, strict=True):
            found[i] = hit
    return found
