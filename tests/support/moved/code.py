"""Patches that lead straight to the moved instructions, and what became of prologues that were run unmoved and moved."""

from collections import Counter
from dataclasses import dataclass, field

from memleak_android.host.errors import TargetError
from memleak_android.host.tracers.inline.landings import Landing
from memleak_android.host.tracers.inline.patch_plan import FunctionCode, PatchPlan, plan_patch

# How far the moved instructions are from the trampoline's start depends on how the landing is reached.
_GUESSES = 3


@dataclass
class Tried:
    """refused: by the reason's last words. died: runs that the runner's handler did not survive, compared by how they died.

    improper: what moved code did otherwise because it wants something in x16 or x17 at its entry, which no function may
    (AAPCS64 §6.1.1).
    """

    moved: int = 0
    faults: int = 0
    died: int = 0
    improper: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def refuse(self, refusal: TargetError) -> None:
        kind = refusal.message.partition(": ")[2].rpartition("`")[2].strip(": ")
        self.refused[kind or refusal.message] += 1


def plan_straight(function: FunctionCode, trampoline: int) -> PatchPlan:
    """A patch whose hook does nothing but call the original."""
    landing = trampoline + 16
    for _ in range(_GUESSES):
        plan = plan_patch(function, Landing(landing), trampoline)
        if plan.original == landing:
            return plan
        landing = plan.original
    raise AssertionError(f"{function.name}: no landing at the moved instructions")
