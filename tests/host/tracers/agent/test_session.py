"""The session of an agent: pipes, deaths, silence. The agent is tests/support/fakes/agent.py."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.tracers.agent.session import AgentDied, AgentSession
from memleak_android.host.wire.blocks import BlockKind
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


def test_an_agent_that_loads_has_more_time_than_one_that_runs(start: Any) -> None:
    session = start({"silent": True}, silence_s=0.1, loading_s=0.6)
    with pytest.raises(AgentDied, match=r"^the agent did not answer for 0\.6 s"):
        list(session.blocks())
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(session), 0)
    session = start({"stuck": True}, silence_s=0.3, loading_s=60)
    with pytest.raises(AgentDied, match=r"did not answer for 0\.3 s"):
        for block in session.blocks():
            if block.kind == BlockKind.STATUS:
                session.stop()
    session.abandon()
    assert session._channel.end_text() == "killed by SIGKILL"


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


def test_users_terminal_where_standard_input_is_closed() -> None:
    """`memleak-android … <&- 2>&-`: the target gets /dev/null there, and our pipes stay our pipes."""
    words = ("wire 2", "arg sh", "arg -c", "arg readlink%20/proc/self/fd/0%20/proc/self/fd/2")
    program = (
        "import sys\nfrom memleak_android.host.tracers.agent.session import AgentSession\n"
        "from memleak_android.host.machine.local.channel import USER_STDIO_LINE, LocalChannel\n"
        f"c = LocalChannel([sys.executable, {str(FAKE_AGENT)!r}], give_stdio=True)\n"
        f"s = AgentSession('fake', c, [*{words!r}, USER_STDIO_LINE])\nlist(s.blocks())\ns.close()\n"
    )
    argv = ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, program]
    environment = {**os.environ, "FAKE_AGENT": "{}"}
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=environment)
    assert done.stdout.splitlines()[-2:] == ["/dev/null", "/dev/null"]
