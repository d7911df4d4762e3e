"""An S3 store by a real server process on loopback (moto's), and the environment that leads to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client of it. For this process and those that it starts."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    import boto3

    running = server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": url, "FSSPEC_S3_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        yield boto3.client("s3", endpoint_url=url)
    finally:
        running.stop()


def upload(client: Any, bucket: str, paths: list[Path], folder: str) -> None:
    for path in paths:
        client.upload_file(str(path), bucket, f"{folder}/{path.name}")
