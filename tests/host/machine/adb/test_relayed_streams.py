"""Streams of a program on a device: a break at either end hangs nothing. Standard input is empty here."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from memleak_android.host.machine.adb import channel
from memleak_android.host.machine.adb.channel import CLOSE_STDIN, EXIT, STDERR, STDOUT, RelayedStreams, packet

Ends = tuple[socket.socket, RelayedStreams]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The device's end of the connection, and what relays ours."""
    there, here = socket.socketpair()
    there.settimeout(100)
    relay = RelayedStreams(here)
    yield there, relay
    there.close()
    relay.close()


def test_both_streams_to_the_last_byte(ends: Ends, capfd: pytest.CaptureFixture[str]) -> None:
    there, relay = ends
    pieces = ((STDOUT, b"out"), (STDERR, b"err"), (STDOUT, b"put"), (EXIT, b"\0"))
    for byte in b"".join(packet(*piece) for piece in pieces):
        there.sendall(bytes([byte]))
    relay.drain()
    assert capfd.readouterr() == ("output", "err")


def test_the_end_of_our_input_is_sent(ends: Ends) -> None:
    there, _ = ends
    assert there.recv(100) == packet(CLOSE_STDIN)


def test_a_silent_program_is_not_waited_for(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_SILENCE_S", 0.1)
    monkeypatch.setattr(channel, "_DRAINED_S", 10_000)
    begin = time.monotonic()
    ends[1].drain()
    assert time.monotonic() - begin > 0.05


def test_endless_output_is_not_waited_for(
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(channel, "_DRAINED_S", 0.2)
    monkeypatch.setattr(channel, "_SILENCE_S", 10_000)
    there, relay = ends
    is_over = threading.Event()

    def print_on() -> None:
        while not is_over.wait(0.01):
            there.sendall(packet(STDOUT, b"y\n"))

    thread = threading.Thread(target=print_on)
    thread.start()
    begin = time.monotonic()
    relay.drain()
    assert time.monotonic() - begin > 0.1 and thread.is_alive()
    printed = ""
    while len(printed) < 4:  # a busy machine may take longer than the drain
        printed += capfd.readouterr().out
    is_over.set()
    thread.join()
    assert printed.startswith("y\ny\n")


def test_our_reader_going_away_breaks_the_programs_streams(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `| head` does."""
    read, write = os.pipe()
    monkeypatch.setitem(channel._OUTPUTS, STDOUT, write)
    os.close(read)
    there, relay = ends
    there.recv(100)
    there.sendall(packet(STDOUT, b"unread"))
    assert there.recv(100) == b"", "the connection is closed, upon which adbd closes the program's pipes"
    relay.drain()
    os.close(write)


def test_a_cut_connection_ends_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither silence nor patience ends it here."""
    monkeypatch.setattr(channel, "_SILENCE_S", 10_000)
    monkeypatch.setattr(channel, "_DRAINED_S", 10_000)
    there, relay = ends
    there.close()
    relay.drain()
