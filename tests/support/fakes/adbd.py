"""A device for tests: an adb daemon on this machine, whose commands run here, and whose faults can be chosen.

The real adb server connects to it. A command runs under this machine's kernel with the folder's bin/ first in PATH (for
su, run-as, getprop … as a test wants them) and TMPDIR in the folder, as adbd sets it: an x86_64 "device" with real BPF.
"""

import asyncio
import os
import signal
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.fakes.adb_transport import AUTH, HEADER, MAX_PAYLOAD, Connection, Stream, StreamClosed

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
_TOKEN_BYTES, _PUBLIC_KEY = 20, 3


@dataclass
class Faults:
    """Faults of the device. May be changed while it runs.

    state: "device", or "unauthorized" (asks for a key it never accepts), or "offline" (accepts and says nothing).
    features: advertised; without shell_v2 it is an Android 6. delay_s: before a service is accepted. is_stalled:
    programs' output is kept back. cut_after_bytes: of one program's output; then the connection is gone.
    refused: services that contain this text are closed at once. late: the output of those that contain this one comes half
    a second late. crlf: each newline of stdout comes as CR LF.
    """

    state: str = "device"
    features: str = "shell_v2,cmd"
    delay_s: float = 0.0
    is_stalled: bool = False
    cut_after_bytes: int | None = None
    refused: str = ""
    late: str = ""
    crlf: bool = False


@dataclass
class FakeDevice:
    """Runs in a thread of its own while it is entered. folder: holds bin/ and data/local/tmp/."""

    folder: Path
    faults: Faults = field(default_factory=Faults)
    port: int = 0
    commands: list[str] = field(default_factory=list)  # every service that was asked for

    def __enter__(self) -> Self:
        for name in ("bin", "data/local/tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._connections: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def temporary(self) -> Path:
        return self.folder / "data/local/tmp"

    def left(self, patience_s: float = 60) -> list[str]:
        """Files in `temporary`, none of them once all are gone within the patience."""
        deadline = time.monotonic() + patience_s
        while os.listdir(self.temporary) and time.monotonic() < deadline:
            time.sleep(0.02)
        return os.listdir(self.temporary)

    def add_program(self, name: str, script: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def cut(self) -> None:
        """Pulls the cable; it is plugged in again at once, without a reconnect."""
        self._call(self._cut())

    def _call(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        await self._cut()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        _, late = await asyncio.wait(rest, timeout=5) if rest else (set(), set())
        for task in late:
            task.cancel()

    async def _cut(self) -> None:
        for connection in self._connections:
            connection.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.faults.state != "device":
            await self._refuse(reader, writer)
            return
        banner = f"device::ro.product.name=fake;ro.product.model=Fake;ro.product.device=fake;features={self.faults.features}"
        connection = Connection(reader, writer, banner.encode(), self._serve)
        self._connections.add(connection)
        await connection.run()
        self._connections.discard(connection)

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """unauthorized: every signature is answered by a new challenge, and a key by waiting for the user."""
        try:
            while True:
                header = HEADER.unpack(await reader.readexactly(HEADER.size))
                await reader.readexactly(header[3])
                is_key = header[:2] == (AUTH, _PUBLIC_KEY)
                if self.faults.state == "unauthorized" and not is_key:
                    token = bytes(_TOKEN_BYTES)
                    writer.write(HEADER.pack(AUTH, 1, 0, len(token), sum(token), AUTH ^ 0xFFFFFFFF) + token)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _serve(self, stream: Stream, service: str) -> None:
        self.commands.append(service)
        kind, _, line = service.partition(":")
        await asyncio.sleep(self.faults.delay_s)
        if not kind.startswith("shell,v2") or (self.faults.refused and self.faults.refused in service):
            return
        await stream.accept()
        await ShellService(self, stream).run(line)


class ShellService:
    """One command with shell protocol v2."""

    def __init__(self, device: FakeDevice, stream: Stream) -> None:
        self._device, self._stream = device, stream
        self._sent = 0
        self._is_late = False

    async def run(self, line: str) -> None:
        folder, pipe = self._device.folder, asyncio.subprocess.PIPE
        self._is_late = bool(self._device.faults.late) and self._device.faults.late in line
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", os.fsencode(line), stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder,
            env={
                "PATH": f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "TMPDIR": str(self._device.temporary),
                "HOME": "/",
                **{name: value for name, value in os.environ.items() if name.startswith("FAKE_")},
            },
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout and process.stderr
        feeding = asyncio.create_task(self._feed(process))
        pumps = [self._pump(process.stdout, STDOUT), self._pump(process.stderr, STDERR)]
        try:
            await asyncio.gather(*pumps)
            code = await process.wait()
            await self._send(EXIT, bytes([code if code >= 0 else 128 - code]))
        finally:
            feeding.cancel()
            await self._hang_up(process)

    async def _hang_up(self, process: asyncio.subprocess.Process) -> None:
        """As adbd once the client is gone (shell_service.cpp): first SIGHUP, then it closes the pipes."""
        assert process.stdin and process.stdout and process.stderr
        if process.returncode is None:
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.02)
        process.stdin.close()
        for reader in (process.stdout, process.stderr):
            reader._transport.close()  # type: ignore[attr-defined]

    async def _pump(self, output: asyncio.StreamReader, identity: int) -> None:
        reading = asyncio.create_task(output.read(MAX_PAYLOAD // 2))
        while True:
            done, _ = await asyncio.wait({reading}, timeout=0.1)
            if self._stream.is_closed:
                reading.cancel()
                raise StreamClosed
            if not done:
                continue
            data = reading.result()
            if not data:
                return
            await asyncio.sleep(0.5 if self._is_late else 0)
            if self._device.faults.crlf and identity == STDOUT:
                data = data.replace(b"\n", b"\r\n")
            while self._device.faults.is_stalled and not self._stream.is_closed:
                await asyncio.sleep(0.02)
            await self._send(identity, data)
            reading = asyncio.create_task(output.read(MAX_PAYLOAD // 2))

    async def _send(self, identity: int, data: bytes) -> None:
        limit = self._device.faults.cut_after_bytes
        if limit is not None and self._sent + len(data) > limit:
            await self._stream.write(struct.pack("<BI", identity, len(data)) + data[: limit - self._sent])
            await self._device._cut()
            raise StreamClosed
        self._sent += len(data)
        await self._stream.write(struct.pack("<BI", identity, len(data)) + data)

    async def _feed(self, process: asyncio.subprocess.Process) -> None:
        buffer, stdin = bytearray(), process.stdin
        assert stdin
        try:
            while True:
                while len(buffer) >= 5 and len(buffer) >= 5 + int.from_bytes(buffer[1:5], "little"):
                    identity, length = struct.unpack_from("<BI", buffer)
                    if identity == STDIN:
                        stdin.write(bytes(buffer[5 : 5 + length]))
                        await stdin.drain()
                    elif identity == CLOSE_STDIN:
                        stdin.close()
                    del buffer[: 5 + length]
                buffer += await self._stream.read()
        except (StreamClosed, ConnectionError):
            return
