"""speedscope itself, from its npm package, opens what our export writes."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path

import pytest

from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS
from tests.support import npm_packages
from tests.support.builders.profiles import profile
from tests.support.oracles import chromium


def opened(folder: Path, content: bytes) -> str:
    """The text of speedscope's page with the file loaded, as its own command line program hands files over."""
    app = folder / "speedscope"
    if not app.exists():
        shutil.copytree(npm_packages.folder("speedscope@1.25.0") / "package" / "dist" / "release", app)
    script = app / "file.js"
    script.write_text(f"speedscope.loadFileFromBase64('file', '{base64.b64encode(content).decode()}')\n")
    address = f"{(app / 'index.html').as_uri()}#localProfilePath={str(script).lstrip('/')}"
    return chromium.dom(address, folder / "chromium")


@pytest.mark.proof
def test_speedscope_opens_it(tmp_path: Path) -> None:
    stream = io.BytesIO()
    FORMATS["speedscope"].write(profile(), stream, ReportOptions())
    page = opened(tmp_path, stream.getvalue())
    assert "outstanding bytes" in page
    assert "1/2" in page
    nothing = stream.getvalue().replace(b"outstanding bytes", b"another name")
    assert "outstanding bytes" not in opened(tmp_path, nothing)
