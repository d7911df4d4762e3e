"""A debuginfod server of a few files, on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """asked: paths in order. status, length: false answers."""

    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    extra_length: int = 0
    asked: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def server(served: Served) -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            content = served.files.get(self.path, b"")
            self.send_response(served.status if content or served.status != 200 else 404)
            self.send_header("Content-Length", str(len(content) + served.extra_length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        served.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield served
        finally:
            running.shutdown()
            thread.join()


def asked_for(build_id: str) -> str:
    return f"/buildid/{build_id}/debuginfo"
