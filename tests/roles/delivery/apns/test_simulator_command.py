"""`carillon apns-simulator`, as its own process."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from click.testing import CliRunner

from carillon.main import main
from services.apns_simulator.certificate import public_key
from services.apns_simulator.script import BY_PREFIX
from services.delivery.apns.push import ApnsResult
from tests.roles.delivery.pushing import BOUND_S, TOKEN, TOPIC, Team, one, send

_RUN = "from carillon.main import main; main()"


async def start(*options: str) -> tuple[Process, str]:
    """The program and its URL."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUN, "apns-simulator", "--port", "0", *options, stdout=PIPE, stderr=PIPE
    )
    assert program.stderr is not None
    said = (await asyncio.wait_for(program.stderr.readline(), BOUND_S)).decode()
    return program, said.split()[-1]


async def test_it_takes_what_the_sender_sends_and_shows_it(tmp_path: Path) -> None:
    team = Team()
    key, authority = tmp_path / "key.pem", tmp_path / "authority.pem"
    key.write_text(public_key(team.credentials.key_pem))
    options = ["--json", "--authority", str(authority), "--topic", TOPIC, "--streams", "3"]
    program, url = await start(*options, "--key", "TEAM123456", "KEY1234567", str(key))
    try:
        sender = team.sender(url, authority.read_text())
        results = await send(sender, one(), one("dead" + TOKEN[4:]), one(topic="org.other"))
        assert [result.reason for result in results] == ["", "Unregistered", "TopicDisallowed"]
        stranger = Team().sender(url, authority.read_text())
        assert await send(stranger, one()) == [ApnsResult(403, "InvalidProviderToken")]
        assert program.stdout is not None
        line = json.loads(await asyncio.wait_for(program.stdout.readline(), BOUND_S))
        assert (line["token"], line["status"], line["reason"]) == (TOKEN, 200, "")
        assert line["payload"] == {"aps": {"alert": "hi"}}
        assert line["headers"]["apns-topic"] == TOPIC
        assert "bearer" not in json.dumps(line)
        await sender.close()
        await stranger.close()
    finally:
        program.terminate()
        assert await asyncio.wait_for(program.wait(), BOUND_S) == 0


def test_help_has_the_whole_table() -> None:
    answer = CliRunner().invoke(main, ["apns-simulator", "--help"])
    assert answer.exit_code == 0
    assert all(f"  {prefix} " in answer.output for prefix, known in BY_PREFIX.items() if not known.once)


@pytest.mark.parametrize("options", [["--host", "nowhere"], ["--host", "192.0.2.1"]])
def test_what_cannot_be_is_one_line(options: list[str]) -> None:
    answer = CliRunner().invoke(main, ["apns-simulator", "--port", "0", *options])
    assert answer.exit_code == 1
    assert answer.output.splitlines()[-1].startswith("Error: ")
