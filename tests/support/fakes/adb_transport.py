"""The device's side of adb's transport protocol: packets, and streams that share one connection.

Learnt from AOSP packages/modules/adb/protocol.txt and from what the real adb server sends.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

HEADER = struct.Struct("<6I")  # command, two arguments, length, checksum, command inverted
MAX_PAYLOAD = 256 * 1024
VERSION = 0x01000001  # from this one on the checksum may be 0


def command(name: bytes) -> int:
    return int.from_bytes(name, "little")


CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = map(command, (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE"))


class StreamClosed(Exception):
    """The other side has closed the stream, or the connection is gone."""


class Stream:
    """One service. A write waits until the last one was acknowledged, as the protocol wants it."""

    def __init__(self, connection: Connection, local: int, remote: int) -> None:
        self._connection, self._local, self._remote = connection, local, remote
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.acknowledged = asyncio.Event()
        self.is_closed = False
        self.is_accepted = False
        self._writing = asyncio.Lock()

    async def accept(self) -> None:
        self.is_accepted = True
        await self._connection.send(OKAY, self._local, self._remote)

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_PAYLOAD):
            async with self._writing:
                if self.is_closed:
                    raise StreamClosed
                self.acknowledged.clear()
                await self._connection.send(
                    WRTE, self._local, self._remote, data[start : start + MAX_PAYLOAD]
                )
                await self.acknowledged.wait()

    async def read(self) -> bytes:
        """The next piece; raises StreamClosed at the end."""
        data = await self.incoming.get()
        if data is None:
            raise StreamClosed
        await self._connection.send(OKAY, self._local, self._remote)
        return data

    def close(self) -> None:
        self.is_closed = True
        self.incoming.put_nowait(None)
        self.acknowledged.set()


Serve = Callable[[Stream, str], Awaitable[None]]


class Connection:
    """One adb server. serve: is called with each stream and the name of its service."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, banner: bytes, serve: Serve
    ) -> None:
        self._reader, self._writer = reader, writer
        self._banner, self._serve = banner, serve
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self._last = 0

    async def send(self, kind: int, first: int, second: int, data: bytes = b"") -> None:
        header = HEADER.pack(kind, first, second, len(data), sum(data) & 0xFFFFFFFF, kind ^ 0xFFFFFFFF)
        async with self._sending:
            self._writer.write(header + data)
            await self._writer.drain()

    async def run(self) -> None:
        """Until the connection ends. Then what runs for it sees the end of its input, as under the real adbd."""
        try:
            while True:
                kind, first, second, length, _, _ = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                await self._take(kind, first, second, await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._writer.close()
        for stream in self._streams.values():
            stream.close()

    async def _take(self, kind: int, first: int, second: int, data: bytes) -> None:
        if kind == CNXN:
            await self.send(CNXN, VERSION, MAX_PAYLOAD, self._banner)
        elif kind == OPEN:
            self._open(first, data.rstrip(b"\0").decode("utf-8", "surrogateescape"))
        elif second in self._streams:
            stream = self._streams[second]
            if kind == WRTE:
                stream.incoming.put_nowait(data)
            elif kind == OKAY:
                stream.acknowledged.set()
            elif kind == CLSE:
                stream.close()

    def _open(self, remote: int, service: str) -> None:
        self._last += 1
        task = asyncio.create_task(self._run_service(self._last, remote, service))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_service(self, local: int, remote: int, service: str) -> None:
        stream = self._streams[local] = Stream(self, local, remote)
        try:
            await self._serve(stream, service)
        except (StreamClosed, ConnectionError):
            pass
        finally:
            del self._streams[local]
            if not self._writer.is_closing():
                await self.send(CLSE, local if stream.is_accepted else 0, remote)  # 0: the opening failed
