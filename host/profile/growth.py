"""Growth over the snapshots of a session: of a stack, of a place, of the whole program."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import Count, RunSeconds


class Trend(StrEnum):
    """The course of a site's memory over the session; the rules are in docs/use/growth.md."""

    GROWS = "grows"
    BURST = "burst"  # nearly all of its rise at once
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
