"""The grounds of a verdict: limits, and what counted against them."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import Count, RawText, RunSeconds


@dataclass(frozen=True, slots=True)
class SuppressionUse:
    """Blocks that a suppression's template matched."""

    template: RawText
    space: Count
    objects: Count


@dataclass(frozen=True, slots=True)
class GrowthGate:
    """Of --fail-on-growth, in bytes per second: the limit, and the sum of the stacks that grow.

    With a baseline only what they grow faster than there.
    """

    limit: float
    rate: float
    error: Annotated[float, Meta(ge=0, description="half of the 95 % interval of rate")]
    stacks: Count
    run_s: RunSeconds = 0.0  # 0 = growth is by time

    @property
    def is_exceeded(self) -> bool:
        return self.rate > self.limit


CULPRITS = "ids of the sites that broke a limit (where none was broken: that counted), the largest first"
GATE_INCOMPLETE = "beside the limit: something is missing"


@dataclass(frozen=True, slots=True)
class Gate:
    """The grounds of the verdict: what counted, and the limit (null: none).

    The runtime's sites, regions and suppressed sites do not count. With a baseline only growth above it counts.
    """

    limit_space: Count | None
    limit_objects: Count | None
    space: Count
    objects: Count
    culprits: Annotated[tuple[str, ...], Meta(description=CULPRITS)]
    is_incomplete: Annotated[bool, Meta(description=GATE_INCOMPLETE)]
    baseline: RawText = ""  # its file
    suppressions: tuple[SuppressionUse, ...] = ()  # those that matched
    growth: GrowthGate | None = None  # None = no limit of growth, or growth could not be judged
