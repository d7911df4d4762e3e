"""The pictures of the documents, each from a real run, drawn by chromium: `make pictures`."""

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from pyte.screens import Char

from tests.support.gcc import gcc
from tests.support.live_terminal import Terminal

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "pictures"
MEMLEAK = (sys.executable, "-P", "-m", "memleak_android.host")
SERVICE = (ROOT / "docs" / "examples" / "login_service.cc").read_text()
OPENED = "\tint id = open_session(request);\n"
RUNS_OF_VERSION = 6
COLUMNS, LINES = 132, 13
STYLE = "body{margin:0;background:#0c0c0c;color:#ccc} pre{margin:10px 14px;font:17px/20px 'DejaVu Sans Mono',monospace}"


def draw(page: Path, name: str, width: int, height: int) -> None:
    words = (
        f"--headless --no-sandbox --hide-scrollbars --virtual-time-budget=5000 --window-size={width},{height}"
    )
    own = (f"--user-data-dir={FOLDER}/chromium", f"--screenshot={ROOT}/docs/pictures/{name}.png")
    subprocess.run(["chromium", *words.split(), *own, page.as_uri()], check=True, stderr=subprocess.DEVNULL)


def measure(*words: object) -> None:
    subprocess.run([*MEMLEAK, *map(str, words)], cwd=FOLDER, check=True, capture_output=True)


def built(version: str, source: str) -> Path:
    """A folder of its own: sites of equal names are the same in all versions."""
    folder = FOLDER / version
    folder.mkdir()
    (folder / "login_service.cc").write_text(source)
    gcc("-g", "-O1", "-o", folder / "login_service", folder / "login_service.cc", "-lstdc++")
    return folder


@contextmanager
def running(folder: Path) -> Iterator[int]:
    with subprocess.Popen(["./login_service"], cwd=folder) as service:
        try:
            yield service.pid
        finally:
            service.kill()


def report_page() -> None:
    program = "../device/demo/memleak-demo"
    measure("--reachability", "-o", FOLDER / "report.html", "--", program)
    draw(FOLDER / "report.html", "report-html", 1200, 1250)


def styled(char: Char) -> str:
    front, back = (f"#{c}" if re.fullmatch("[0-9a-f]{6}", c) else "" for c in (char.fg, char.bg))
    if char.reverse:
        front, back = back or "#0c0c0c", front or "#ccc"
    return f"color:{front};background:{back};font-weight:{'bold' if char.bold else 'normal'}"


def as_page(rows: list[list[Char]]) -> str:
    lines = [
        "".join(
            f'<span style="{style}">{html.escape("".join(char.data for char in chars))}</span>'
            for style, chars in groupby(row, styled)
        )
        for row in rows
    ]
    return f"<meta charset=utf-8><style>{STYLE}</style><pre>" + "\n".join(lines)


def live_view(folder: Path) -> None:
    with running(folder) as pid:
        words = [*MEMLEAK, "--live", "--pid", str(pid)]
        terminal = Terminal(words, {**os.environ, "COLORTERM": "truecolor"}, COLUMNS, LINES, cwd=folder)
        try:
            terminal.wait_for(lambda text: bool(re.search(r"LEAKING(?s:.*) 1\d s", text)))
            terminal.press("r")
            terminal.wait_for(lambda text: "still reachable" in text and "searched" not in text)
            (FOLDER / "live.html").write_text(as_page(terminal.rows))
        finally:
            terminal.close()
    draw(FOLDER / "live.html", "live", COLUMNS * 41 // 4 + 24, LINES * 20 + 20)


def record(folder: Path, run: int) -> None:
    with running(folder) as pid:
        labels = [f"--label=version={folder.name}", f"--label=model=host {run}"]
        out = FOLDER / f"{folder.name}-{run}.memleak"
        measure("record", "-o", out, "--pid", pid, "--duration", f"{6 + run}s", *labels)


def fleet_page(*versions: Path) -> None:
    with ThreadPoolExecutor(RUNS_OF_VERSION) as pool:
        for folder in versions:
            list(pool.map(record, [folder] * RUNS_OF_VERSION, range(RUNS_OF_VERSION)))
    measure("fleet", "report", *FOLDER.glob("*.memleak"), "--format", "html", "-o", FOLDER / "fleet.html")
    draw(FOLDER / "fleet.html", "fleet-html", 1300, 900)


def main() -> None:
    FOLDER.mkdir(parents=True)
    report_page()
    before = built("1.0", SERVICE)
    live_view(before)
    mended = SERVICE.replace(OPENED, "").replace(
        "\tsessions[id].reply +=", f"{OPENED}\tsessions[id].reply +="
    )
    fleet_page(before, built("1.1", mended))


if __name__ == "__main__":
    main()
