"""Redis and nginx under load, attached to and detached from by slots and by inline hooks."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.attached_session import Attached, attach, contents_of, layout_of
from tests.support.inline_session import attach_inline

pytestmark = [pytest.mark.proof, pytest.mark.compares_code]

TIMES = 20
WAYS = {"plt": attach, "inline": attach_inline}
HELD = 23
VALUE = 5000
# A string of redis (sds.h) of 256 bytes and more has a header of 5 bytes and a final zero.
BLOCK = VALUE + 5 + 1
NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen unix:{folder}/socket; location / {{ return 200 "answer"; }} }}
}}
"""


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install redis-server nginx-light)")


@contextmanager
def running(*argv: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(list(map(str, argv)), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def connected(path: Path) -> socket.socket:
    for _ in range(100):
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(20)
        try:
            found.connect(str(path))
        except OSError:
            found.close()
            time.sleep(0.05)
        else:
            return found
    raise AssertionError(f"no server listens at {path}")


def asked(connection: socket.socket, *words: bytes) -> bytes:
    """A command of redis whose answer is one line."""
    text = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    connection.sendall(text)
    answer = b""
    while not answer.endswith(b"\r\n"):
        piece = connection.recv(4096)
        assert piece, "redis hung up"
        answer += piece
    return answer


def fetched(path: Path) -> bytes:
    with connected(path) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return answer


def again_and_again(way: str, pid: int, meanwhile: Callable[[], object]) -> Iterator[Attached]:
    """Every session, after it was seen that it left code, slots and protections as they were."""
    before, layout = contents_of(pid), layout_of(pid)
    for number in range(TIMES):
        found = WAYS[way](pid, meanwhile)
        assert (found.error, found.lost) == ("", 0), (number, found)
        assert contents_of(pid) == before, (number, found.remarks)
        assert layout_of(pid) == layout, number
        yield found


@pytest.mark.parametrize("way", WAYS)
def test_redis_holds_what_was_set_while_attached(way: str, tmp_path: Path) -> None:
    need("redis-server", "redis-benchmark")
    path, n_set = tmp_path / "socket", 0
    options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", tmp_path]
    load = ["redis-benchmark", "-s", path, "-t", "set,get,lpush,lpop", "-r", "1000", "-n", "1000000000", "-q"]
    with running("redis-server", *options) as server, connected(path) as connection, ExitStack() as stack:
        busy = stack.enter_context(running(*load, "-d", "100"))

        def set_keys() -> None:
            nonlocal n_set
            for _ in range(HELD):
                n_set += 1
                assert asked(connection, b"SET", b"held:%d" % n_set, b"x" * VALUE) == b"+OK\r\n"

        for found in again_and_again(way, server.pid, set_keys):
            assert found.sizes[BLOCK] == HELD
            assert asked(connection, b"STRLEN", b"held:%d" % n_set) == b":%d\r\n" % VALUE
            assert server.poll() is None and busy.poll() is None
        assert (
            asked(connection, b"EXISTS", *(b"held:%d" % (i + 1) for i in range(n_set))) == b":%d\r\n" % n_set
        )
    assert (n_set, server.returncode) == (TIMES * HELD, 0)


def worker_of(pid: int) -> int:
    """The child of nginx that answers."""
    for _ in range(100):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError("nginx has no worker")


@pytest.mark.parametrize("way", WAYS)
def test_nginx_s_worker_answers_and_keeps_nothing(way: str, tmp_path: Path) -> None:
    """Blocks of a request are freed with its connection; an open connection keeps its own."""
    need("nginx", "sh", "curl")
    (tmp_path / "conf").write_text(NGINX.format(folder=tmp_path))
    path = tmp_path / "socket"
    load = ["sh", "-c", 'while :; do curl -s --unix-socket "$0" "http://x/[1-200]" >"$1" || exit 1; done']
    with running("nginx", "-c", tmp_path / "conf", "-e", tmp_path / "errors") as server, ExitStack() as stack:
        assert fetched(path).endswith(b"answer")
        worker = worker_of(server.pid)
        busy = stack.enter_context(running(*load, path, tmp_path / "answers"))
        open_ones: list[socket.socket] = []

        def open_connections() -> None:
            for _ in range(HELD):
                open_ones.append(stack.enter_context(connected(path)))
                open_ones[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")  # not the end of it
            assert fetched(path).endswith(b"answer")

        for found in again_and_again(way, worker, open_connections):
            assert HELD <= found.sizes.total() < HELD * 20, found.sizes
            assert worker_of(server.pid) == worker and busy.poll() is None
            while open_ones:
                open_ones.pop().close()
        assert fetched(path).endswith(b"answer")
    assert server.returncode == 0
