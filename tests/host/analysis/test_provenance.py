"""Provenance of recordings: written by the session, read back from untrusted recordings."""

import json
from pathlib import Path

import pytest

from memleak_android.host.analysis.provenance import read_provenance
from memleak_android.host.machine.adb.app import parse_app
from memleak_android.host.wire.session import SessionOrigin
from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    "session",
    [
        {"model": 7, "api_level": "34", "version_code": True, "labels": ["a"]},
        {"model": ["x"], "api_level": -1, "version_code": 1 << 70, "labels": {"k": 3}, "abi": None},
        {"labels": {f"k{i}": "v" for i in range(10_000)}, "version": "\x1b[2J" + "9" * 1_000_000},
    ],
)
def test_a_malformed_origin_is_dropped(session: dict[str, object]) -> None:
    origin = read_provenance(SessionOrigin.decode(session))
    assert not origin.api_level and not origin.version_code and not origin.model and not origin.abi
    assert len(origin.labels) <= 32 and len(origin.version) <= 300 and origin.version.isprintable()


@pytest.mark.parametrize(
    ("lines", "version", "code"),
    [
        ("    versionCode=210 minSdk=23 targetSdk=34\n    versionName=2.1-beta\n", "2.1-beta", 210),
        ("    versionName=null\n", "", 0),
        ("    versionCode=²\n    versionName=\x1b[2J\n", "?[2J", 0),
    ],
)
def test_the_version_that_the_package_manager_tells(lines: str, version: str, code: int) -> None:
    app = parse_app("a.b", 0, ["/x"], f"Packages:\n  Package [a.b] (1):\n{lines}", "")
    assert (app.version, app.version_code) == (version, code)


def test_labels_are_kept(tmp_path: Path) -> None:
    done = CommandLine(tmp_path).run(
        "--json", "-", "--label", "version=1.2", "--label", "seed=7", "--", "true"
    )
    assert json.loads(done.out)["target"]["labels"] == {"version": "1.2", "seed": "7"}


@pytest.mark.parametrize("label", ["version", "=1", "1=x", "a b=c", "k=" + "v" * 201])
def test_malformed_labels(label: str, tmp_path: Path) -> None:
    done = CommandLine(tmp_path).run("--label", label, "--", "true")
    assert done.code == 2 and "is not a label (write version=1.2" in done.error
