"""`carillon apns-simulator` as a process."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from click.testing import CliRunner

from carillon.main import main
from services.apns_simulator.keys import public_key
from services.apns_simulator.script import BY_PREFIX
from services.delivery.channels.apns.request import ApnsResult
from testkit.delivery.apns import TOKEN, TOPIC, Team, make_push, send
from testkit.services import TIMEOUT_S

_RUN = "from carillon.main import main; main()"


async def start(*options: str) -> tuple[Process, str]:
    """Start the simulator; returns its process and URL."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUN, "apns-simulator", "--port", "0", *options, stdout=PIPE, stderr=PIPE
    )
    assert program.stderr is not None
    line = (await asyncio.wait_for(program.stderr.readline(), TIMEOUT_S)).decode()
    return program, line.split()[-1]


async def test_pushes_of_a_sender_are_answered_and_printed(tmp_path: Path) -> None:
    team = Team()
    key, authority = tmp_path / "key.pem", tmp_path / "authority.pem"
    key.write_text(public_key(team.credentials.key_pem))
    options = ["--json", "--authority", str(authority), "--topic", TOPIC, "--streams", "3"]
    program, url = await start(*options, "--key", "TEAM123456", "KEY1234567", str(key))
    try:
        sender = team.sender(url, authority.read_text())
        results = await send(sender, make_push(), make_push("dead" + TOKEN[4:]), make_push(topic="org.other"))
        assert [result.reason for result in results] == ["", "Unregistered", "TopicDisallowed"]
        unknown_team = Team().sender(url, authority.read_text())
        assert await send(unknown_team, make_push()) == [ApnsResult(403, "InvalidProviderToken")]
        assert program.stdout is not None
        line = json.loads(await asyncio.wait_for(program.stdout.readline(), TIMEOUT_S))
        assert (line["token"], line["status"], line["reason"]) == (TOKEN, 200, "")
        assert line["payload"] == {"aps": {"alert": "hi"}}
        assert line["headers"]["apns-topic"] == TOPIC
        assert "bearer" not in json.dumps(line)
        await sender.close()
        await unknown_team.close()
    finally:
        program.terminate()
        assert await asyncio.wait_for(program.wait(), TIMEOUT_S) == 0


def test_help_lists_every_scripted_answer() -> None:
    answer = CliRunner().invoke(main, ["apns-simulator", "--help"])
    assert answer.exit_code == 0
    assert all(f"  {prefix} " in answer.output for prefix, scripted in BY_PREFIX.items() if not scripted.once)


@pytest.mark.parametrize("options", [["--host", "nowhere"], ["--host", "192.0.2.1"]])
def test_invalid_options_are_reported_in_one_line(options: list[str]) -> None:
    answer = CliRunner().invoke(main, ["apns-simulator", "--port", "0", *options])
    assert answer.exit_code == 1
    assert answer.output.splitlines()[-1].startswith("Error: ")
