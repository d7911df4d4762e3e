"""The adb server of the tests of devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fakes.adb_server import own_adb_server


@pytest.fixture(scope="session")
def adb_server() -> Iterator[None]:
    with own_adb_server():
        yield
