"""Growth over the snapshots of a session: of a stack, a place, the whole program, and memory without an owner."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import Count, RunSeconds


class Trend(StrEnum):
    """The course of a site's memory over the session; the rules are in docs/use/growth.md."""

    GROWS = "grows"
    BURST = "burst"  # nearly all of its rise at once
    RISES = "rises"  # to new heights until the end, but not as growth does
    PLATEAU = "plateau"  # rose, and then no more
    STEADY = "steady"


RATE = "in its unit, of what stayed, else by Theil and Sen over the snapshots; whatever the trend"


@dataclass(frozen=True, slots=True)
class Growth:
    """Certainty (95 % from low to high), begin and kind of growth_bytes_per_s; see docs/use/growth.md."""

    trend: Trend
    bytes_per_s: Annotated[float, Meta(description=RATE)]
    low: float
    high: float
    since_ns: Annotated[int, Meta(ge=0, description="of the session")]
    rise: Annotated[int, Meta(description="bytes since then")]
    run_s: RunSeconds = 0.0  # 0 = growth is by time

    @property
    def error(self) -> float:
        """Half of the 95 % interval."""
        return (self.high - self.low) / 2


def grows(growth: Growth | None) -> bool:
    return growth is not None and growth.trend is Trend.GROWS and growth.low > 0


@dataclass(frozen=True, slots=True)
class GrowthSpan:
    """Time over which growth was judged; with fewer instants than needed no site has a growth."""

    from_ns: Count
    to_ns: Count
    instants: Count
    needed: Count
    run_s: RunSeconds = 0.0  # the instants are ends of runs; 0 = no scenario

    @property
    def is_judged(self) -> bool:
        return self.instants >= self.needed


LARGEST = "the largest such mappings at the end"


class UnownedPart(StrEnum):
    MAPPINGS = "mappings"  # without a counted block, beyond what the ledger's regions cover
    ALLOCATOR = "allocator"  # in the allocator's mappings, beyond the counted blocks: it keeps them, or calls were not seen
    # Resident bytes rise as the program writes, evenly where it maps few large regions.
    REGIONS = "regions"  # in mappings without a counted block, the ledger's regions included
    # Resident bytes of all these together: a reserve that is filled rises, though what is held does not.
    RESIDENT = "resident"  # where nothing else grows; of fewer readings than a trend needs, their rise
    GROWING_REGIONS = (
        "growing_regions"  # the same, where the regions of all stacks together grow, though of no single one
    )
    OLDER = "older"  # given back, of blocks from before the session: a loss beyond the counted blocks, as a positive rate


LEAKED = frozenset((UnownedPart.MAPPINGS, UnownedPart.GROWING_REGIONS))


@dataclass(frozen=True, slots=True)
class MappingSum:
    """Mappings of one name, "" = nameless: resident bytes that have no owner, and how many mappings."""

    name: str
    space: Count
    mappings: Count


@dataclass(frozen=True, slots=True)
class UnownedGrowth:
    """Resident bytes per second, with the ends of the 95 % interval."""

    part: UnownedPart
    bytes_per_s: float
    low: float
    high: float
    since_ns: Annotated[int, Meta(ge=0, description="of the session")]
    rise: Annotated[int, Meta(description="bytes since then")]
    largest: Annotated[tuple[MappingSum, ...], Meta(description=LARGEST)] = ()
