"""Packets of shell protocol v2: the same bytes in every cut, and lengths that lie."""

from memleak_android.host.machine.adb.channel import (
    EXIT,
    STDERR,
    STDOUT,
    PacketParser,
    packet,
    take_stdin,
)

# "hi\n" on stdout, nothing on stderr, exit status 7: literal bytes, as adbd sends them.
SAID = bytes.fromhex("01 03000000 68690a 02 00000000 03 01000000 07")


def gather(pieces: list[bytes]) -> dict[int, bytes]:
    parser, found = PacketParser(), dict[int, bytes]()
    for piece in pieces:
        for identity, data in parser.feed(piece):
            found[identity] = found.get(identity, b"") + data
    return found


def test_every_cut_gives_the_same() -> None:
    whole = {STDOUT: b"hi\n", STDERR: b"", EXIT: b"\x07"}
    for cut in range(len(SAID)):
        assert gather([SAID[:cut], SAID[cut:]]) == whole
    assert gather([bytes([byte]) for byte in SAID]) == whole


def test_a_length_of_4_GiB_gathers_nothing() -> None:
    parser = PacketParser()
    list(parser.feed(bytes.fromhex("01 ffffffff")))
    assert list(parser.feed(b"x" * 1000)) == [(STDOUT, b"x" * 1000)]
    assert not parser._header


def test_stdin_is_taken_in_bounded_packets() -> None:
    outgoing = bytearray(b"y" * 40000)
    first, second, third = take_stdin(outgoing), take_stdin(outgoing), take_stdin(outgoing)
    assert first == packet(0, b"y" * 32768)
    assert second == bytes.fromhex("00 401c0000") + b"y" * 7232
    assert third == b""
