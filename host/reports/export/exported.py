"""The heap's stacks for foreign formats. Blocks without a stack are included, so that totals agree."""

from collections.abc import Iterator, Sequence

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.reports.base import ROOT, bounded

UNATTRIBUTED = "[unattributed: no stack was captured]"
GIVEN_BACK = "[given back since, or by stacks that hold nothing now]"


def named(function: str) -> Frame:
    """A frame that only has a name."""
    return Frame(0, "", "", 0, function, 0, False, "registers")


def heap_sites(profile: Profile) -> list[CallSite]:
    """Every site of the heap that holds something, largest first, and one for the unattributed blocks.

    Sites of kind mmap are left out: the heap's blocks lie in them. The sums of inuse_* are those of Totals if the sites are
    not limited by size, up to rounding of estimates.
    """
    sites = [site for site in profile.sites if site.kind != "mmap" and site.inuse_objects]
    totals = profile.totals
    if totals.unattributed_objects:
        space, objects = totals.unattributed_space, totals.unattributed_objects
        frames = (named(UNATTRIBUTED),)
        sites.append(CallSite("unattributed", space, objects, None, None, 0, "user", ROOT, frames))
    return sites


def freed_elsewhere(profile: Profile) -> tuple[int, int] | None:
    """Bytes and blocks of the whole time that no site of heap_sites() counts. None = unknown to the tracer.

    With it the sums of alloc_* are those of Totals.
    """
    totals = profile.totals
    sites = heap_sites(profile)
    attributed = [site for site in sites if site.id != "unattributed"]
    if totals.alloc_space is None or totals.alloc_objects is None:
        return None
    if any(site.alloc_space is None or site.alloc_objects is None for site in attributed):
        return None
    space = totals.alloc_space - sum(site.alloc_space or 0 for site in attributed)
    objects = totals.alloc_objects - sum(site.alloc_objects or 0 for site in attributed)
    return (space, objects) if space >= 0 and objects >= 0 else None


def display_name(frame: Frame) -> str:
    """The function, for nameless code `module+0xstart`, else the address."""
    if frame.function:
        return bounded(frame.function)
    if frame.module:
        return f"{bounded(module_name(frame.module))}+{frame.start:#x}"
    return f"{frame.address:#x}" if frame.address else "[no mapping]"


def locations(frames: Sequence[Frame]) -> Iterator[tuple[Frame, ...]]:
    """Frames of one address together, innermost first: inlined functions, then the function that contains them."""
    chain: list[Frame] = []
    for frame in frames:
        chain.append(frame)
        if not frame.inlined:
            yield tuple(chain)
            chain = []
    if chain:
        yield tuple(chain)
