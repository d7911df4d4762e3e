"""Growth of a process that no counted block and no region of the ledger explains."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import Count

LARGEST = "the largest such mappings at the end"


class UnownedPart(StrEnum):
    MAPPINGS = "mappings"  # without a counted block, beyond what the ledger's regions cover
    ALLOCATOR = "allocator"  # in the allocator's mappings, beyond the counted blocks: it keeps them, or calls were not seen
    # Resident bytes rise as the program writes, evenly where it maps few large regions.
    REGIONS = "regions"  # in mappings without a counted block, the ledger's regions included
    # Resident bytes of all these together: a reserve that is filled rises, though what is held does not.
    RESIDENT = "resident"  # where nothing else grows; of fewer readings than a trend needs, their rise
    OLDER = "older"  # given back, of blocks from before the session: a loss beyond the counted blocks, as a positive rate


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
