"""The SESSION block as typed groups: missing fields, fields of the wrong type, unknown fields."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memleak_android.host.wire.session import SessionInfo

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "command pid package only_pids labels api_level tracer sample_bytes options about missing"
    " left_out scenario marks memory memory_of_others process_names peak_bound"
)


def test_missing_fields() -> None:
    session = SessionInfo.decode({})
    assert session.tracing.tracer == "unknown" and session.tracing.unwind_mode == "cfi"
    assert session.target.pid == 0 and session.target.only_pids is None
    assert session.findings.run_ends_ns is None and session.findings.peak_bound is None


def test_unknown_fields_are_kept() -> None:
    session = SessionInfo.decode({"from": "the future", "pid": 1}) | {"pid": 2, "missing": ["a"]}
    assert session.fields == {"from": "the future", "pid": 2, "missing": ["a"]}
    assert session.target.pid == 2 and [reason.text for reason in session.findings.reasons] == ["a"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.dictionaries(st.sampled_from(NAMES.split()), JSON))
def test_any_json_is_decoded(fields: dict[str, object]) -> None:
    session = SessionInfo.decode(fields)
    assert isinstance(session.target.pid, int) and all(
        isinstance(end, int) for _, end in session.findings.marks
    )
