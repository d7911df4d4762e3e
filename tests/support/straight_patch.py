"""A patch that leads straight to the moved instructions, as if its hook did nothing but call the original."""

from __future__ import annotations

from memleak_android.host.tracers.inline.landings import Landing
from memleak_android.host.tracers.inline.patch_plan import FunctionCode, PatchPlan, plan_patch

_GUESSES = (
    3  # how far the moved instructions are from the trampoline's start depends on how the landing is reached
)


def plan_straight(function: FunctionCode, trampoline: int) -> PatchPlan:
    landing = trampoline + 16
    for _ in range(_GUESSES):
        plan = plan_patch(function, Landing(landing), trampoline)
        if plan.original == landing:
            return plan
        landing = plan.original
    raise AssertionError(f"{function.name}: no landing at the moved instructions")
