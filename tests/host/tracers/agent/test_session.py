"""The session of an agent: pipes, deaths, silence. The agent is tests/support/fakes/agent.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.errors import MemleakError, TargetError, TracerError
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.tracers.agent.session import AgentDied, AgentSession
from memleak_android.host.wire.blocks import Block, BlockKind, Reason
from tests.support.command_line import FAKE_AGENT

ATTACH = ("wire 2", "pid 77")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    sessions = []

    def begin(scenario: dict[str, Any], lines: Sequence[str] = ATTACH, **how: Any) -> AgentSession:
        monkeypatch.setenv("FAKE_AGENT", json.dumps(scenario))
        channel = LocalChannel([sys.executable, str(FAKE_AGENT), "preload"])
        session = AgentSession("fake", channel, lines, **how)
        sessions.append(session)
        return session

    yield begin
    for session in sessions:
        session.close()


def pid_of(session: AgentSession) -> int:
    channel = session._channel
    assert isinstance(channel, LocalChannel)
    return channel.pid


def until_died(session: AgentSession) -> tuple[list[Block], TracerError]:
    blocks: list[Block] = []
    with pytest.raises(TracerError) as caught:
        blocks.extend(session.blocks())
    return blocks, caught.value


def test_blocks_in_order_until_the_end(start: Any) -> None:
    session = start({"run": 0.1})
    kinds = [block.kind for block in session.blocks()]
    assert kinds[0] == BlockKind.HELLO
    assert kinds[-1] == BlockKind.END
    assert kinds.index(BlockKind.KEYS) < kinds.index(BlockKind.LIVE)


def test_stop_and_snapshot_on_request(start: Any) -> None:
    session, snapshots = start({}), 0
    for block in session.blocks():
        if block.kind == BlockKind.STATUS and snapshots == 0:
            session.request_snapshot()
            snapshots = 1
        elif block.kind == BlockKind.LIVE:
            snapshots += 1
            session.stop()
    assert snapshots == 3  # the request's and the final one


def test_death_keeps_what_arrived_and_says_how(start: Any) -> None:
    blocks, error = until_died(start({"die_after": "status"}))
    assert isinstance(error, AgentDied)
    assert [block.kind for block in blocks][-1] == BlockKind.STATUS
    assert error.message == "the agent died: exit code 3"


def test_silent_agent_is_given_up_and_ended(start: Any) -> None:
    session = start({"silent": True}, loading_s=0.5)
    _, error = until_died(session)
    assert error.message == "the agent did not answer for 0.5 s"
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(session), 0)


def test_an_agent_that_loads_has_more_time_than_one_that_runs(start: Any) -> None:
    session = start({"silent": True}, silence_s=0.1, loading_s=0.6)
    _, error = until_died(session)
    assert error.message == "the agent did not answer for 0.6 s"
    session.close()
    session = start({"stuck": True}, silence_s=0.3, loading_s=60)
    with pytest.raises(AgentDied, match=r"did not answer for 0\.3 s"):
        for block in session.blocks():
            if block.kind == BlockKind.STATUS:
                session.stop()
    session.abandon()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(Reason.TARGET_ERROR, TargetError), (Reason.TRACER_ERROR, TracerError), (6, MemleakError)],
)
def test_an_agent_that_cannot_even_begin_says_why(start: Any, reason: int, kind: type[MemleakError]) -> None:
    text = "configuration line not understood: shim2 (install both from one release)"
    session = start({"error_first": [reason, text]})
    with pytest.raises(MemleakError) as caught:
        list(session.blocks())
    assert type(caught.value) is kind
    assert str(caught.value) == "configuration line not understood: shim2; install both from one release"
    session.close()


def test_configuration_larger_than_a_pipe_beside_output_larger_than_a_pipe(
    start: Any, tmp_path: Path
) -> None:
    """Neither side may wait for the other: the agent writes 1 MiB to stderr before it reads a line."""
    config = tmp_path / "config"
    lines = [*ATTACH, *(f"env NAME{n}={'x' * 1000}" for n in range(1000))]
    session = start({"stderr_bytes": 1 << 20, "config_file": str(config), "run": 0.1}, lines)
    assert [block.kind for block in session.blocks()][-1] == BlockKind.END
    assert config.read_text().splitlines() == lines


def test_agent_that_is_not_a_program(tmp_path: Path) -> None:
    program = tmp_path / "memleakd"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    with pytest.raises(TracerError) as caught:
        LocalChannel([str(program)])
    assert str(caught.value) == f"could not start {program}: Exec format error; build it with `make device`"
    assert caught.value.exit_code == 5


def test_no_descriptor_is_left_open(start: Any, tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    session = start({"run": 0.05})
    list(session.blocks())
    session.close()
    with pytest.raises(TracerError):
        LocalChannel([str(tmp_path / "missing")])
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_stuck_agent_is_killed(start: Any) -> None:
    session = start({"stuck": True}, silence_s=0.5)
    with pytest.raises(AgentDied, match="did not answer"):
        for block in session.blocks():
            if block.kind == BlockKind.STATUS:
                session.stop()
    session.abandon()
    assert session._channel.end_text() == "killed by SIGKILL"


def test_users_terminal_where_standard_input_is_closed(tmp_path: Path) -> None:
    """`memleak-android … <&- 2>&-`: the target gets /dev/null there, and our pipes stay our pipes."""
    program = (
        "import sys\nfrom memleak_android.host.tracers.agent.session import AgentSession\n"
        "from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel\n"
        f"c = LocalChannel([sys.executable, {str(FAKE_AGENT)!r}], give_stdio=True)\n"
        "s = AgentSession('fake', c, "
        "['wire 2', 'arg sh', 'arg -c', 'arg readlink%20/proc/self/fd/0%20/proc/self/fd/2', USER_STDIO_LINE])\n"
        "list(s.blocks())\ns.close()\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, program],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "FAKE_AGENT": "{}"},
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == ["/dev/null", "/dev/null"]
