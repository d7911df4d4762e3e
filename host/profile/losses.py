"""The causes of loss: what the report says about each, and whether it makes sums wrong or costs stacks only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossCause:
    """makes_sums_wrong: calls were missed. Else only stacks are missing: their blocks are counted as unattributed.

    is_stack_buffer: the evidence of a stack was dropped because a buffer was full.
    """

    text: str
    makes_sums_wrong: bool = False
    is_stack_buffer: bool = False


_UNATTRIBUTED = "(outstanding blocks left without one are unattributed)"

# By name, in the order of enum ml_lost in device/wire.h. The wire format has room for 16: a 17th needs a new wire version.
LOSS_CAUSES = {
    "ring_full": LossCause(f"stacks dropped, no room in the ring {_UNATTRIBUTED}", is_stack_buffer=True),
    "stack_fault": LossCause("stacks whose bytes could not be read"),
    "table_full": LossCause(
        "blocks that the live table could not take: totals are too low; raise --max-live",
        makes_sums_wrong=True,
    ),
    "keys_full": LossCause("blocks without a stack key"),
    "threads_full": LossCause(
        "calls of threads beyond the limit, not counted: totals are too low", makes_sums_wrong=True
    ),
    "pending_full": LossCause("calls nested too deep, not counted", makes_sums_wrong=True),
    "missed_entry": LossCause("returns whose call was not seen", makes_sums_wrong=True),
    "missed_return": LossCause("calls whose return was not seen", makes_sums_wrong=True),
    "missed_free": LossCause(
        "frees that were not seen (their addresses were handed out again)", makes_sums_wrong=True
    ),
    "events": LossCause("events of --trace dropped"),
    "mappings": LossCause("mapping changes dropped: frames may be named in the wrong module"),
    "nursery_full": LossCause(
        f"stacks dropped, the agent's nursery was full {_UNATTRIBUTED}", is_stack_buffer=True
    ),
    "regions": LossCause("mmap operations that could not be applied", makes_sums_wrong=True),
    "programs": LossCause("programs that ran but were not measured"),
    "recursion": LossCause(
        "calls of the kernel's allocators from within the tracer's own work, not counted (of the whole machine)",
        makes_sums_wrong=True,
    ),
    "handles": LossCause(
        "calls that gave more handles at once than are followed: totals are too low", makes_sums_wrong=True
    ),
}

ACCOUNTING_LOSSES = frozenset(name for name, cause in LOSS_CAUSES.items() if cause.makes_sums_wrong)


def loss_text(name: str) -> str | None:
    """None for a cause that this version does not know."""
    cause = LOSS_CAUSES.get(name)
    return cause.text if cause else None
