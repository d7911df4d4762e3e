"""The causes of loss: what the report says about each, and the condition of a complete measurement that it spoils."""

from collections.abc import Sequence
from dataclasses import dataclass

from memleak_android.host.profile.coverage import Condition


@dataclass(frozen=True, slots=True)
class LossCause:
    """spoils: CALLS makes sums wrong; of STACKS, the blocks are counted as unattributed.

    is_stack_buffer: the evidence of a stack was dropped because a buffer was full.
    """

    text: str
    spoils: Condition = Condition.STACKS
    is_stack_buffer: bool = False


_UNATTRIBUTED = "(outstanding blocks left without one are unattributed)"

# By name, in the order of enum ml_lost in device/wire.h. The wire format has room for 16: a 17th needs a new wire version.
LOSS_CAUSES = {
    "ring_full": LossCause(f"stacks dropped, no room in the ring {_UNATTRIBUTED}", is_stack_buffer=True),
    "stack_fault": LossCause("stacks whose bytes could not be read"),
    "table_full": LossCause(
        "blocks that the live table could not take: totals are too low; raise --max-live",
        spoils=Condition.CALLS,
    ),
    "keys_full": LossCause("blocks without a stack key"),
    "threads_full": LossCause(
        "calls of threads beyond the limit, not counted: totals are too low", spoils=Condition.CALLS
    ),
    "pending_full": LossCause("calls nested too deep, not counted", spoils=Condition.CALLS),
    "missed_entry": LossCause("returns whose call was not seen", spoils=Condition.CALLS),
    "missed_return": LossCause("calls whose return was not seen", spoils=Condition.CALLS),
    "missed_free": LossCause(
        "frees that were not seen (their addresses were handed out again)", spoils=Condition.CALLS
    ),
    "events": LossCause("events of --trace dropped", spoils=Condition.RECORD),
    "mappings": LossCause("mapping changes dropped: frames may be named in the wrong module"),
    "nursery_full": LossCause(
        f"stacks dropped, the agent's nursery was full {_UNATTRIBUTED}", is_stack_buffer=True
    ),
    "regions": LossCause("mmap operations that could not be applied", spoils=Condition.CALLS),
    "programs": LossCause("programs that ran but were not measured", spoils=Condition.PROGRAMS),
    "recursion": LossCause(
        "calls of the kernel's allocators from within the tracer's own work, not counted (of the whole machine)",
        spoils=Condition.CALLS,
    ),
    "handles": LossCause(
        "calls that gave more handles at once than are followed: totals are too low", spoils=Condition.CALLS
    ),
}

ACCOUNTING_LOSSES = frozenset(name for name, cause in LOSS_CAUSES.items() if cause.spoils is Condition.CALLS)


def most_lost(counts: Sequence[int]) -> str:
    """Text of the cause with the largest count. counts: by number of the cause."""
    causes = [cause.text for cause in LOSS_CAUSES.values()]
    return causes[min(counts.index(max(counts)), len(causes) - 1)]


def loss_text(name: str) -> str | None:
    """None for a cause that this version does not know."""
    cause = LOSS_CAUSES.get(name)
    return cause.text if cause else None
