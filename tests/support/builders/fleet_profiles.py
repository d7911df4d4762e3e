"""A FleetProfile made by hand, with names of strangers in it."""

from memleak_android.host.profile.changes import Change
from memleak_android.host.profile.fleet_profile import (
    CachedFiles,
    FleetProfile,
    OnlyOn,
    RecordingRow,
    RecordingState,
    SitePrevalence,
    VersionChange,
    VersionSum,
)
from tests.support.builders.profiles import SERVER, frame, profile

EVIL = "</script><img src=x onerror=\"out('evil', 1)\"><b>\x1b[2J"
FRAMES = (frame(SERVER, "planted::open(int)"), frame(SERVER, "main"))


def recording(
    number: int, state: RecordingState = RecordingState.OK, reason: str = "", **lost: int
) -> RecordingRow:
    return RecordingRow(
        source=f"farm/{number}.memleak", digest=f"{number:032x}", state=state, reason=reason, bytes=5000,
        taken_at_s=1.7e9, duration_s=61.5, package="com.example.app", version="1.0" if number % 2 else "2.0",
        version_code=0, model=f"model {number}", api_level=33, abi="arm64-v8a", serial="", inuse_space=7000,
        unattributed_space=100, unattributed_objects=1, stacks=10, complete=9, lost=tuple(lost.items()),
    )  # fmt: skip


def prevalence(number: int, mean: float = 1500.25) -> SitePrevalence:
    return SitePrevalence(
        id=f"{number:016x}", kind="user", end="ROOT", frames=FRAMES, recordings=2, share=2 / 3, mean_space=mean,
        mean_objects=2.5, p50=1000, p90=2000, p99=3000, versions=("1.0", "2.0"),
    )  # fmt: skip


def fleet_profile(sites: int = 3, **changed: object) -> FleetProfile:
    evil = (frame(SERVER, EVIL), frame(SERVER, "main"))
    fields: dict[str, object] = {
        "recordings": (
            recording(1),
            recording(2, RecordingState.INCOMPLETE, "3 blocks lost", table_full=3, ring_full=1),
            recording(3, table_full=4),
            recording(4, RecordingState.BROKEN, EVIL),
        ),
        "versions": (VersionSum("1.0", 2, 6000.5, 61.5), VersionSum(EVIL, 1, 7000.0, 61.5)),
        "sites": tuple(prevalence(i, 1500.25 / (i + 1)) for i in range(sites)),
        "changes": (
            VersionChange(
                id=f"{1:016x}", kind="user", frames=evil, change=Change.NEW, old_version="1.0", new_version=EVIL,
                old=0.0, new=750.125, old_recordings=0, new_recordings=1, old_of=2, new_of=1, q=0.0001,
            ),
        ),
        "only_on": (
            OnlyOn(
                id=f"{2:016x}", kind="user", frames=FRAMES, dimension="api_level", value="33", recordings=3, of=3,
                mean_space=500.0, p=0.001,
            ),
        ),
        "mean": profile(),
        "notes": (EVIL,),
        "cache": (CachedFiles("unwind tables", 2, 7, 0),),
    }  # fmt: skip
    return FleetProfile(**{**fields, **changed})  # type: ignore[arg-type]
