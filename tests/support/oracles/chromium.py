"""A page opened in headless Chromium: what its DOM is after its scripts have run."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

WORDS = (
    *("--headless=new", "--no-sandbox", "--window-size=1400,1000", "--virtual-time-budget=5000"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),  # WebGL without a GPU
    "--allow-file-access-from-files",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # whatever it would fetch fails
)


def need() -> str:
    found = next((one for name in ("chromium", "google-chrome") if (one := shutil.which(name))), None)
    if found is None:
        pytest.skip("chromium is not on this machine (apt-get install chromium)")
    return found


def dump(page: Path, fragment: str = "", script: str = "") -> dict[str, str]:
    """Text by element id. script: run after the page's own; what it puts into `out(id, text)` is there too."""
    path = page.with_name("opened.html")
    out = (
        "const out = (id, text) => { const made = document.createElement('p'); made.id = id;"
        " made.textContent = String(text); document.body.append(made); };"
        "window.addEventListener('error', (e) => out('error', e.message));"
    )
    html = page.read_text()
    html = html.replace("<script type=", f"<script>{out}</script><script type=", 1)
    path.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    texts = _Texts()
    texts.feed(dom(f"{path.as_uri()}#{fragment}", page.with_name("chromium")))
    assert "error" not in texts.by_id, texts.by_id["error"]
    return texts.by_id


def dom(address: str, profile: Path) -> str:
    """The page's HTML after its scripts have run. profile: a folder for the browser's own state."""
    words = [need(), *WORDS, f"--user-data-dir={profile}", "--dump-dom", address]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout


class _Texts(HTMLParser):
    """The text inside each element that has an id."""

    VOID = frozenset({"meta", "input", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[str, str] = {}
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self._open.append(dict(attrs).get("id") or "")
            self.by_id.setdefault(self._open[-1], "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and self._open:
            self._open.pop()

    def handle_data(self, text: str) -> None:
        for name in {name for name in self._open if name}:
            self.by_id[name] += text
