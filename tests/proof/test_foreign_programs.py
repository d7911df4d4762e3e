"""Programs of other projects, fed at an even pace: once they keep what they read, once they do not.

The kernel's resident bytes tell how fast each grows.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.workloads import run

LINE_BYTES = 2000
KEPT = 50  # lines, of a program that does not grow
PACE = 100  # lines a second
DURATION_S = 25
ERROR = 0.3  # of the rate: allocators round, and keep pages of their own


def text(n: int) -> str:
    return (f"{n:08d}" + hashlib.sha256(str(n).encode()).hexdigest() * 40)[: LINE_BYTES - 1]


def line(n: int, grows: bool) -> bytes:
    return f"{text(n)}\n".encode()


def json_line(n: int, grows: bool) -> bytes:
    return f'{{"key":"{text(n)}"}}\n'.encode()


def insertion(n: int, grows: bool) -> bytes:
    create = "create table kept (k integer primary key, v);\n" if n == 0 else ""
    return f"{create}insert or replace into kept values ({n if grows else n % KEPT}, '{text(n)}');\n".encode()


def redis_set(n: int, grows: bool) -> bytes:
    words = ["SET", f"k{n if grows else n % KEPT}", text(n)]
    return "".join([f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]).encode()


def index_entry(n: int, grows: bool) -> bytes:
    """What is no entry of the index only asks for an object that there is not."""
    name = hashlib.sha1(str(n).encode()).hexdigest()
    return f"100644 {name} 0\t{text(n)}\n".encode() if grows else f"{name}\n".encode()


def digits(n: int, grows: bool) -> bytes:
    return f"a[{n if grows else n % KEPT}]={'7' * LINE_BYTES}\n".encode()


def opened_file(n: int, grows: bool) -> bytes:
    """A language server's client, which closes its files or does not."""
    about = {"uri": f"file:///{n}.py"}
    opened = {**about, "languageId": "python", "version": 1, "text": f"# {text(n)}\n"}
    start = {"processId": None, "rootUri": None, "capabilities": {}}
    messages: list[dict[str, Any]] = []
    if n == 0:
        messages += [
            {"id": 1, "method": "initialize", "params": start},
            {"method": "initialized", "params": {}},
        ]
    messages += [{"method": "textDocument/didOpen", "params": {"textDocument": opened}}]
    messages += [{"method": "textDocument/didClose", "params": {"textDocument": about}}] * (not grows)
    bodies = [json.dumps({"jsonrpc": "2.0", **message}) for message in messages]
    return "".join(f"Content-Length: {len(body)}\r\n\r\n{body}" for body in bodies).encode()


@dataclass(frozen=True)
class Program:
    """module: a pattern of the place's; "" = its allocator is linked in without names. by_socket: it listens at ./socket."""

    module: str
    leak: tuple[str, ...]
    steady: tuple[str, ...]
    feed: Callable[[int, bool], bytes] = line
    pace: int = PACE
    by_socket: bool = False
    environment: dict[str, str] = field(default_factory=dict)


REDIS = ("redis-server", "--port", "0", "--save", "", "--unixsocket", "socket")
NODE = "require('readline').createInterface({input:process.stdin}).on('line',l=>"
RUFF = (str(Path(sys.executable).with_name("ruff")), "server", "--isolated")
# Else it collects old strings after 16 MB only, and grows until then.
RUBY = {
    f"RUBY_GC_{name}": "1000000"
    for name in ("MALLOC_LIMIT", "MALLOC_LIMIT_MAX", "OLDMALLOC_LIMIT", "OLDMALLOC_LIMIT_MAX")
}
PROGRAMS = {
    "bash": Program(
        "bash",
        ("bash", "-c", 'while read -r l; do a+=("$l"); done'),
        ("bash", "-c", f'while read -r l; do a[n++%{KEPT}]="$l"; done'),
    ),
    "bc": Program("bc", ("bc", "-q"), ("bc", "-q"), digits),
    "git": Program(
        "git",
        ("git", "update-index", "--add", "--index-info"),
        ("git", "cat-file", "--batch-check"),
        index_entry,
        500,
    ),
    "jq": Program(
        r"libjq\.so.*",
        ("jq", "-n", "reduce inputs as $x ([]; . + [$x])"),
        ("jq", "-n", f"reduce inputs as $x ([]; [$x] + .[:{KEPT}])"),
        json_line,
    ),
    "lua": Program(
        r"lua5.4|liblua.*",
        ("lua5.4", "-e", "a={} for l in io.lines() do a[#a+1]=l end"),
        ("lua5.4", "-e", f"a={{}} n=0 for l in io.lines() do a[n%{KEPT}]=l n=n+1 end"),
    ),
    "mawk": Program("mawk", ("mawk", "{a[NR]=$0}"), ("mawk", f"{{a[NR%{KEPT}]=$0}}")),
    "node": Program(
        r"node|\[anon\]",
        ("node", "-e", f"const a=[];{NODE}a.push(Buffer.alloc(20000,1)))"),
        ("node", "-e", f"const a=[];let n=0;{NODE}a[n++%{KEPT}]=Buffer.alloc(20000,1))"),
    ),
    "perl": Program("perl|libperl.*", ("perl", "-ne", "push @a,$_"), ("perl", "-ne", f"$a[$.%{KEPT}]=$_")),
    "php": Program(
        "php.*",
        ("php", "-r", "while(($l=fgets(STDIN))!==false)$a[]=$l;"),
        ("php", "-r", f"$n=0;while(($l=fgets(STDIN))!==false)$a[$n++%{KEPT}]=$l;"),
        pace=1000,
    ),
    "redis": Program("redis-.*", REDIS, REDIS, redis_set, by_socket=True),
    "ruby": Program(
        r"libruby.*",
        ("ruby", "-e", "a=[];while l=gets;a<<l;end"),
        ("ruby", "-e", f"a=[];n=0;while l=gets;a[n%{KEPT}]=l;n+=1;end"),
        environment=RUBY,
    ),
    "ruff": Program("", RUFF, RUFF, opened_file),
    "sqlite3": Program(r"libsqlite3.*|sqlite3", ("sqlite3", ":memory:"), ("sqlite3", ":memory:"), insertion),
    "tclsh": Program(r"libtcl.*", ("tclsh", "leak.tcl"), ("tclsh", "steady.tcl")),
}
FILES = {
    "leak.tcl": "while {[gets stdin l]>=0} {lappend a $l}\n",
    "steady.tcl": f"set n 0\nwhile {{[gets stdin l]>=0}} {{set a([expr {{[incr n]%{KEPT}}}]) $l}}\n",
}


@contextmanager
def fed(program: Program, grows: bool, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    for name, content in FILES.items():
        (folder / name).write_text(content)
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    process = subprocess.Popen(
        program.leak if grows else program.steady,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=os.environ | program.environment,
    )
    over = threading.Event()
    feeding = threading.Thread(target=feed, args=(program, grows, writer(program, process, folder), over))
    feeding.start()
    try:
        yield process
    finally:
        over.set()
        process.kill()
        process.communicate()
        feeding.join()


def writer(program: Program, process: subprocess.Popen[bytes], folder: Path) -> int:
    """A descriptor to write to."""
    if not program.by_socket:
        return os.dup(process.stdin.fileno())
    deadline = time.monotonic() + 60
    while not (folder / "socket").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.fspath(folder / "socket"))
    threading.Thread(target=lambda: list(iter(lambda: connection.recv(65536), b"")), daemon=True).start()
    return os.dup(connection.fileno())


def feed(program: Program, grows: bool, descriptor: int, over: threading.Event) -> None:
    begin = time.monotonic()
    with open(descriptor, "wb", buffering=0) as stream:
        for n in itertools.count():
            try:
                stream.write(program.feed(n, grows))
            except OSError:  # it was killed
                return
            if over.wait(max(0.0, begin + (n + 1) / program.pace - time.monotonic())):
                return


def resident(pid: int) -> tuple[float, int]:
    """Seconds, and bytes that are no file's."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return time.monotonic(), int(found[1]) << 10


@pytest.mark.proof
@pytest.mark.parametrize("grows", [True, False], ids=["leak", "steady"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_answer(name: str, grows: bool, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    if shutil.which(program.leak[0]) is None:
        pytest.skip(f"{program.leak[0]} is not installed")
    with fed(program, grows, tmp_path) as process:
        time.sleep(2)  # its start-up is not what is measured
        before = resident(process.pid)
        options = ["--duration", f"{DURATION_S}s"]
        report = run(
            "bpf", tmp_path, "--pid", str(process.pid), options=options, codes=(0, 6), timeout_s=120
        ).report
        after = resident(process.pid)
    answer = report["answer"]
    if not grows:
        assert answer["state"] == "not_growing", answer
        return
    if not program.module:
        assert answer["state"] in ("leaking", "cannot_tell"), answer
        return
    assert answer["state"] == "leaking", answer
    truth = (after[1] - before[1]) / (after[0] - before[0])
    assert answer["growth_bytes_per_s"] == pytest.approx(truth, rel=ERROR)
    place = max(report["places"], key=lambda place: place.get("growth_bytes_per_s", 0.0))
    assert re.fullmatch(program.module, place["module"].rpartition("/")[2]), place
