"""The gate: limits, and what counted against them."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import BYTE, Count, RawText, RunSeconds, Unit


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
    unit: Unit = BYTE

    @property
    def is_exceeded(self) -> bool:
        return self.rate > self.limit


CULPRITS = "ids of the sites that broke a limit (where none was broken: that counted), the largest first"


@dataclass(frozen=True, slots=True)
class Gate:
    """What counted against the limits of the command line (null: none).

    The runtime's sites, regions and suppressed sites do not count. With a baseline only growth above it counts.
    """

    limit_space: Count | None
    limit_objects: Count | None
    space: Count
    objects: Count
    culprits: Annotated[tuple[str, ...], Meta(description=CULPRITS)]
    baseline: RawText = ""  # its file
    suppressions: tuple[SuppressionUse, ...] = ()  # those that matched
    growth: GrowthGate | None = None  # None = no limit of growth, or growth could not be judged
    unit: Unit = BYTE

    @property
    def holds_too_much(self) -> bool:
        too_much = self.limit_space is not None and self.space > self.limit_space
        return too_much or (self.limit_objects is not None and self.objects > self.limit_objects)

    @property
    def is_exceeded(self) -> bool:
        return self.holds_too_much or (self.growth is not None and self.growth.is_exceeded)
