"""Whole chains at random instructions against a shadow stack, which no unwind table had a part in.

A sample is right when every frame is the true one and none is missing or added. None is left out: not those inside
longjmp and the unwinding of exceptions either, where the words that lead to the caller have been overwritten.
"""

import pytest

from tests.unwind.ground_truth.comparison import Outcome, compared
from tests.unwind.ground_truth.guest import Sampling
from tests.unwind.ground_truth.guest_builds import BUILDS, PACKAGED, Build, run_build, run_packaged

_SHARE = 0.999
# Of hard.cc: while an exception is on its way and longjmp loads registers, the words that lead to the caller are gone.
_SHARE_OF_EACH = 0.995
_SAMPLES_MIN = 30_000


def sampling(samples: int, mean: int) -> Sampling:
    return Sampling(mean=mean, capacity=samples, instructions=2 * samples * mean)


def report(outcomes: dict[str, Outcome]) -> tuple[int, float]:
    """(samples, share of right chains) of all; prints them one by one with what is wrong in them."""
    right = total = 0
    for name, outcome in outcomes.items():
        n, good = len(outcome.same), int(outcome.same.sum())
        whole = int((outcome.same & outcome.is_complete).sum())
        print(
            f"{name:45} {n:6} samples, {100 * good / n:7.3f} % equal, of these {100 * whole / max(good, 1):.1f} % end ROOT"
        )
        for kind, count in outcome.kinds().most_common(4):
            print(f"    {count:5} {kind}")
        right, total = right + good, total + n
    return total, right / total


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["arm64", "arm32"])
def test_random_instructions_of_real_programs(arch: str) -> None:
    outcomes = {
        f"{arch}: {build.name}": compared(run_build(build, sampling(2000, 2200), "60", "signals"))
        for build in BUILDS
        if build.arch == arch
    }
    outcomes |= {
        f"{arch}: {program.path} of Debian": compared(run_packaged(arch, program, sampling(8000, 300)))
        for program in PACKAGED
    }
    samples, share = report(outcomes)
    print(f"{arch}: {100 * share:.3f} % of {samples} chains are equal")
    assert samples >= _SAMPLES_MIN
    assert share >= _SHARE
    assert min(outcome.same.mean() for outcome in outcomes.values()) >= _SHARE_OF_EACH


@pytest.mark.parametrize("build", [BUILDS[0], BUILDS[6]], ids=lambda build: build.arch)
def test_a_few_instructions(build: Build) -> None:
    outcome = compared(run_build(build, sampling(400, 900), "60", "signals"))
    samples, share = report({build.name: outcome})
    assert samples == 400 and share >= 0.99
    assert outcome.run.recorded.chain_length.max() > 10
    assert outcome.is_complete[outcome.same].all()
