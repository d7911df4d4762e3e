#!/usr/bin/env python3
"""Speaks memleakd's protocol without measuring anything: a scenario (JSON in FAKE_AGENT) says what happens.

Written from device/wire.h with struct and zlib alone, so that it also checks the host's own encoding.

Keys of a scenario, all optional:
  config_file     where the received configuration lines are written
  stderr_bytes    written to stderr before anything else
  hello_version   wire version in HELLO;  block_version  in the block headers
  silent          nothing is ever written
  evidence        number of keys, each with one allocation and one evidence record
  unattributed    number of live blocks whose key has no evidence
  stack_bytes     of each slice
  lost            {cause number: count}
  error           [reason, text]: ERROR and END instead of a session
  error_first     the same before HELLO
  die_after       "hello" | "snapshot" | "status": exit with code 3 there
  cut             the output stops in the middle of the final LIVE block
  garbage         bytes that are no block follow HELLO
  run             seconds until the target ends by itself (attached sessions only)
  stuck           from `stop` on: silent and deaf to everything but SIGKILL
  snapshots_file  made when the third snapshot that was asked for is written
"""

import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
import urllib.parse
import zlib

HELLO, EVIDENCE, LIVE, KEYS, MAPS = range(1, 6)
PROCESS, EVENTS, STATUS, LOG, ERROR, END = range(7, 13)
STOPPED, TARGET_EXIT, INPUT_CLOSED, TARGET_ERROR = 1, 2, 3, 4
# Shared, as compilers map their code: it is not searched for a malloc of its own.
MAPS_TEXT = b"00400000-00500000 r-xs 00000000 08:01 0 /nonexistent/program\n"

scenario = json.loads(os.environ.get("FAKE_AGENT", "{}"))


def padded(data):
    return data + b"\0" * (-len(data) % 8)


def emit(kind, payload):
    version = scenario.get("block_version", 2)
    header = struct.pack("<IHHII", 0x314B4C4D, kind, version, len(payload), zlib.crc32(payload))
    sys.stdout.buffer.write(header + payload)
    sys.stdout.buffer.flush()


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def say_hello():
    version = scenario.get("hello_version", 2)
    emit(HELLO, struct.pack("<IHHIIQQ24s", version, 1, 2, 4096, 0, now(), time.time_ns(), b"fake"))


def record(number, start):
    """ml_evidence, 21 registers of struct pt_regs, the slice, a frame chain that ends at once."""
    stack = bytes(scenario.get("stack_bytes", 64))
    registers = [0] * 21
    registers[16], registers[19] = 0x401000 + 16 * number, 0x7FFF0000  # rip, rsp
    tail = struct.pack("<21Q", *registers) + padded(stack) + bytes(8)
    head = struct.pack(
        "<IHHQQQQQ", 144 + len(tail), 1 | 64, 1, number, start, 1000 + number, 0x10000 * number, 10 * number
    )
    head += struct.pack("<IIHHIQQ", 77, 77, 21, 0, len(stack), 0x7FFF0000, (1 << 21) - 1)
    return head + bytes(64) + tail


def columns(rows, formats):
    return b"".join(struct.pack(f"<{len(rows)}{f}", *(row[i] for row in rows)) for i, f in enumerate(formats))


def snapshot(number, start):
    n, orphans = scenario.get("evidence", 3), scenario.get("unattributed", 0)
    keys = [(1000 + i, 2, 20 * i, 1, 10 * i, 0, 77) for i in range(1, n + 1)]
    live = [(0x10000 * i, 10 * i, start, i, 1000 + i, 77, 77, 1, 0) for i in range(1, n + 1)]
    live += [(0x90000000 + i, 7, start, 10**6 + i, 5 * 10**6, 77, 77, 1, 0) for i in range(orphans)]
    emit(KEYS, struct.pack("<QQII", number, now(), len(keys), 1) + columns(keys, "Q" * 7))
    payload = struct.pack("<QQII", number, now(), len(live), 1) + columns(live, "QQQQQIIII")
    if scenario.get("cut"):
        header = struct.pack("<IHHII", 0x314B4C4D, LIVE, 2, len(payload), zlib.crc32(payload))
        sys.stdout.buffer.write(header + payload[: len(payload) // 2])
        sys.stdout.buffer.flush()
        os._exit(0)
    emit(LIVE, payload)


def emit_status():
    n = scenario.get("evidence", 3)
    held = sum(10 * i for i in range(1, n + 1))
    lost = [0] * 16
    for cause, count in scenario.get("lost", {}).items():
        lost[int(cause)] = count
    counts = (now(), 2 * n, 2 * held, n, held, 0, n, 0, 10**6)
    emit(STATUS, struct.pack("<9Q16Q", *counts, *lost))


def read_config():
    lines = []
    for raw in sys.stdin.buffer:
        line = raw.decode().rstrip("\n")
        if line == "start":
            break
        lines.append(line)
    if path := scenario.get("config_file"):
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
    return lines


def fail(reason, text):
    data = text.encode()
    emit(ERROR, padded(struct.pack("<II", reason, len(data)) + data))
    emit(END, struct.pack("<IiQ", reason, -1, now()))
    sys.exit(1)


def start_command(lines):
    arguments = [urllib.parse.unquote_to_bytes(line[4:]) for line in lines if line.startswith("arg ")]
    if not arguments:
        return None
    user = {"stdin": 3, "stdout": 4, "stderr": 5} if "stdio 3 4 5" in lines else {}
    try:
        return subprocess.Popen(arguments, **user)
    except OSError as error:
        fail(TARGET_ERROR, f"could not start {os.fsdecode(arguments[0])}: {error.strerror} (check the path)")


def control(timeout):
    """The next control line, "" on none, None when the input is closed."""
    if not select.select([0], [], [], timeout)[0]:
        return ""
    data = os.read(0, 4096)
    return data.decode() if data else None


def run(child, start):
    """Until stopped or the target ends: reason and wait status."""
    number, begin = 1, time.monotonic()
    while True:
        line = control(0.05)
        emit_status()
        if line is None:
            return INPUT_CLOSED, -1, number
        if "snapshot" in line and not scenario.get("no_snapshots"):
            snapshot(number, start)
            emit_status()
            number += 1
            if number == 4 and scenario.get("snapshots_file"):
                open(scenario["snapshots_file"], "w").close()
            if scenario.get("die_after") == "snapshot":
                os._exit(3)
        if "stop" in line and scenario.get("stuck"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if "stop" in line:
            return STOPPED, -1, number
        if child and child.poll() is not None:
            code = child.returncode
            return TARGET_EXIT, (code << 8 if code >= 0 else -code), number
        if not child and time.monotonic() - begin > scenario.get("run", 1e9):
            return TARGET_EXIT, 0, number


def main():
    if n := scenario.get("stderr_bytes"):
        sys.stderr.write("noise\n" * (n // 6))
        sys.stderr.flush()
    lines = read_config()
    if scenario.get("silent"):
        while control(1000) is not None:
            pass
        sys.exit(0)
    if "error_first" in scenario:
        fail(*scenario["error_first"])
    say_hello()
    if scenario.get("garbage"):
        sys.stdout.buffer.write(b"Segmentation fault\n" * 10)
        sys.exit(0)
    if scenario.get("die_after") == "hello":
        sys.stderr.write("out of memory\n")
        os._exit(3)
    if "error" in scenario:
        fail(*scenario["error"])
    start = now()
    child = start_command(lines)
    emit(MAPS, padded(struct.pack("<QII", start, 77, len(MAPS_TEXT)) + MAPS_TEXT))
    for number in range(1, scenario.get("evidence", 3) + 1):
        emit(EVIDENCE, record(number, start))
    if "events 1" in lines:
        emit(EVENTS, struct.pack("<QQQQQIIIi", start, 0x1000, 24, 5, 0, 77, 78, 1, 0))
    emit_status()
    if scenario.get("die_after") == "status":
        os._exit(3)
    reason, wait_status, number = run(child, start)
    snapshot(number, start)
    emit_status()
    emit(END, struct.pack("<IiQ", reason, wait_status, now()))


main()
