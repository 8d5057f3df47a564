"""`carillon replay` of every role: rebuild, comparison, earlier moments, and states of another log or version."""

import asyncio
import contextlib
import json
import os
import pty
import re
import shutil
import sqlite3
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner, Result

from carillon.main import main
from carillon.roles import REPLAYABLE
from services.domain.topics import ACCOUNTS, TASK_COMMANDS, TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppServer
from testkit.installation.processes import CARILLON, Installation
from testkit.waiting import until
from tests.journeys.stopped_service import StoppedService, UnavailableApns, write_history
from tests.journeys.test_push import message, shown

ENDS_S = 120.0
"""Time in which a refused command must end, seconds; other parts that have started stop first."""

CHANGED_BY_A_START = {"accounts", "analytics"}
"""Roles whose state differs after a start: another link for the first administrator, other times of ingestion."""

SAYS_S = 300.0
"""Time in which a command must say why it is refused, seconds."""

GOES_ON_S = 5.0
"""Time after which a command that has not ended counts as going on, seconds."""


@pytest.fixture(scope="module")
def unavailable_apns() -> Iterator["UnavailableApns"]:
    apns = UnavailableApns()
    yield apns
    apns.server.close()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, unavailable_apns: UnavailableApns) -> Iterator[StoppedService]:
    installation = Installation(tmp_path_factory.mktemp("stopped") / "data", None)
    installation.env["CARILLON_APNS_URL"] = unavailable_apns.url
    service = StoppedService(installation)
    try:
        for run in range(2):
            installation.start()
            asyncio.run(write_history(service, run))
            installation.stop()
            if run == 0:
                service.then, service.digests_then = datetime.now(UTC), service.states()
        service.digests = service.states()
        yield service
    finally:
        installation.close()


def ends(data: Path) -> dict[str, int]:
    """Return the number of records appended to each topic."""
    with sqlite3.connect(data / "log" / "events.db") as log:
        return defaultdict(int, log.execute('SELECT topic, sum("end") FROM ends GROUP BY topic').fetchall())


def announcements(data: Path) -> int:
    """Return the number of records of `devices` in which an owner announces its epoch; compaction keeps all of them."""
    with sqlite3.connect(data / "log" / "events.db") as log:
        where = "topic = 'devices' AND substr(CAST(key AS TEXT), 1, 6) = 'epoch/'"
        return int(log.execute(f"SELECT count(*) FROM records WHERE {where}").fetchone()[0])


@pytest.mark.long
@pytest.mark.parametrize("role", REPLAYABLE)
def test_a_state_is_rebuilt_as_of_an_earlier_moment(stopped: StoppedService, tmp_path: Path, role: str) -> None:
    """This works although compaction kept only the last record of each device."""
    carillon = stopped.installation.carillon
    local = stopped.then.astimezone(ZoneInfo(stopped.installation.env["CARILLON_TIMEZONE"])).replace(tzinfo=None)
    then = (local if role == "scheduling" else stopped.then).isoformat()
    answer = json.loads(carillon("replay", role, "--until", then, "--into", str(tmp_path / "past"), "--json"))
    assert answer["digest"] == stopped.digests_then[role] != stopped.digests[role]
    assert any((tmp_path / "past").iterdir())
    assert json.loads(carillon("replay", role, "--verify", "--json"))["live"] == stopped.digests[role]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--until", "2026-11-21T00:00:00"], "go together"),
        (["--into", "x"], "go together"),
        (["--verify", "--until", "2026-11-21", "--into", "x"], "cannot be taken back"),
        (["--until", "yesterday", "--into", "x"], "Invalid value for --until: 'yesterday' is no date"),
        (["--until", "2026-11-21", "--into", "."], ". is not empty"),
    ],
)
def test_an_earlier_state_never_replaces_the_live_one(
    options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARILLON_DATA_DIR", str(tmp_path))
    (tmp_path / "state").touch()
    result = CliRunner().invoke(main, ["replay", "delivery", *options])
    assert result.exit_code in (1, 2)
    assert why in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.long
@pytest.mark.parametrize("role", REPLAYABLE)
def test_a_state_of_another_log_is_refused(stopped: StoppedService, tmp_path: Path, role: str) -> None:
    """The start and `--verify` refuse it; a rebuild replaces it. Without analytics `carillon up` goes on.

    The other log has grown past the offsets of the state.
    """
    copy = stopped.copy(tmp_path / "data")
    with sqlite3.connect(copy.data / "log" / "events.db") as log:
        log.execute("UPDATE identity SET id = 'another'")
    for other in set(REPLAYABLE) - {role}:
        shutil.rmtree(copy.data / other, ignore_errors=True)
    for command in ["up"], ["replay", role, "--verify"]:
        goes_on = role == "analytics" and command == ["up"]
        seconds = GOES_ON_S if goes_on else ENDS_S
        code, lines = _refused([CARILLON, *command], copy.env_of("up"), f"the state of {role}", seconds)
        assert code == (None if goes_on else 1)
        assert "belongs to another log" in lines
    if role in ("analytics", "delivery"):
        copy.carillon("replay", role)
        assert json.loads(copy.carillon("replay", role, "--verify", "--json"))["equal"]


@pytest.mark.long
@pytest.mark.parametrize("role", ["accounts", "analytics"])
def test_a_state_of_a_log_that_lost_its_tail_and_grew_again_is_refused(
    stopped: StoppedService, tmp_path: Path, role: str
) -> None:
    """In a topic of the role each partition's last record is another valid one. `carillon up` needs no analytics."""
    copy = stopped.copy(tmp_path / "data")
    with sqlite3.connect(copy.data / "log" / "events.db") as log:
        changed = log.execute(
            "UPDATE records SET (key, value) = (SELECT key, value FROM records AS other WHERE other.topic ="
            " records.topic AND other.partition = records.partition AND other.offset = records.offset - 1)"
            " WHERE topic = ? AND offset > 0 AND (topic, partition, offset) IN"
            " (SELECT topic, partition, max(offset) FROM records GROUP BY topic, partition)"
            " AND EXISTS (SELECT 1 FROM records AS other WHERE other.topic = records.topic"
            " AND other.partition = records.partition AND other.offset = records.offset - 1)",
            [ACCOUNTS.name],
        )
        assert changed.rowcount
    if role == "analytics":  # reads the topic too
        shutil.rmtree(copy.data / "accounts")
    goes_on = role == "analytics"
    seconds = GOES_ON_S if goes_on else ENDS_S
    code, lines = _refused([CARILLON, "up"], copy.env_of("up"), f"the state of {role}", seconds)
    assert code == (None if goes_on else 1)
    assert "gone back and grown since" in lines
    assert "carillon restore --lost-devices" in lines


@pytest.mark.parametrize("role", sorted({*REPLAYABLE} - {"analytics"}))
def test_the_commands_in_the_refusal_of_a_state_work(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was replaced by one that holds as many records, so offsets alone show nothing."""
    monkeypatch.setenv("CARILLON_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CARILLON_PARTITIONS", "2")

    def carillon(command: str) -> Result:
        return CliRunner().invoke(main, command.split())

    asyncio.run(write_log(tmp_path / "log"))
    assert carillon(f"replay {role}").exit_code == carillon(f"replay {role} --verify").exit_code == 0
    shutil.rmtree(tmp_path / "log")
    asyncio.run(write_log(tmp_path / "log"))
    refused = carillon(f"replay {role} --verify")
    assert refused.exit_code == 1
    said = re.search(rf"the state of {role} belongs to another log: .*`carillon (.*)`", refused.output)
    assert said is not None
    assert carillon(said[1]).exit_code == carillon(f"replay {role} --verify").exit_code == 0


async def write_log(directory: Path) -> None:
    log = SqliteLog(directory / "events.db", TOPICS, partitions=2)
    await log.append([NewRecord(TASK_COMMANDS.name, 0, b"", b"")])
    await log.close()


def _refused(command: list[str], env: dict[str, str], text: str, seconds: float) -> tuple[int | None, str]:
    """Run a command until its standard error contains the text, and then wait at most `seconds` for its end.

    Return its exit code, None if it still runs, and the lines of its standard error so far. One that does not say the
    text is killed in the end.
    """
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = ""
        watchdog = threading.Timer(SAYS_S, process.kill)
        watchdog.start()
        try:
            for line in process.stderr:
                lines += line
                if text in line:
                    break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return process.returncode, lines
        finally:
            watchdog.cancel()
            process.kill()


@pytest.mark.long
def test_states_of_another_version_are_built_again_at_the_start(stopped: StoppedService, tmp_path: Path) -> None:
    copy = stopped.copy(tmp_path / "data")
    files = {
        path: _version(path)
        for role in REPLAYABLE
        for path in (copy.data / role).iterdir()
        if path.is_file() and path.read_bytes()[:6] == b"SQLite"
    }
    assert {path.parent.name for path in files} == set(REPLAYABLE)
    assert {"devices.sqlite", "aliases.sqlite"} <= {path.name for path in files}
    for path in files:
        _set_version(path, 999)
    copy.start()
    copy.stop()
    for path, version in files.items():
        assert _version(path) == version, path
    for role in REPLAYABLE:
        answer = json.loads(copy.carillon("replay", role, "--verify", "--json"))
        assert answer["equal"], role
        assert answer["live"] == stopped.digests[role] or role in CHANGED_BY_A_START, role


def _version(path: Path) -> int:
    with sqlite3.connect(path) as file:
        version: int = file.execute("PRAGMA user_version").fetchone()[0]
    return version


def _set_version(path: Path, version: int) -> None:
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA user_version = {version}")


@pytest.mark.long
async def test_replays_send_nothing(stopped: StoppedService, tmp_path: Path, unavailable_apns: UnavailableApns) -> None:
    """Pushes are pending at this time, to APNs and for an offline device."""
    copy = stopped.copy(tmp_path / "data")
    before = ends(copy.data)
    unavailable_apns.new_connections()
    for options in ([], ["--verify"], ["--until", stopped.then.isoformat(), "--into", str(tmp_path / "past")]):
        await asyncio.to_thread(copy.carillon, "replay", "delivery", *options)
    assert ends(copy.data) == before
    assert unavailable_apns.new_connections() == 0
    await asyncio.to_thread(copy.start)
    try:
        device = VirtualDevice(copy.gateway_url, stopped.app.appkey)
        await device.connect()
        await until(lambda: _has_new_connection(unavailable_apns))
        quiet = ends(copy.data)["pushes"]
        await asyncio.to_thread(copy.carillon, "replay", "delivery", "--verify")
        server = AppServer(copy.v2_url)
        await server.push(message(stopped.app, 5, "marker", token={"android": device.token}), stopped.app.secret_key)
        assert (await shown(device))["content"] == "marker"
        await server.close()
        await device.close()
        await asyncio.to_thread(copy.stop)
        assert ends(copy.data)["pushes"] == quiet + 1
    finally:
        copy.close()


async def _has_new_connection(apns: UnavailableApns) -> bool:
    return apns.new_connections() > 0


@pytest.mark.long
def test_progress_is_shown_on_a_terminal(stopped: StoppedService, tmp_path: Path) -> None:
    """Shown are records done, all records, rate and time left; without a terminal only the answer is printed.

    A replay of a past state reads fewer records: it leaves out the announcements of epochs.
    """
    counts = ends(stopped.installation.data)
    verify = [CARILLON, "replay", "delivery", "--verify"]
    seen = _on_a_terminal(verify, stopped.installation.env)
    count = sum(counts[topic] for topic in ("push-commands", "pushes", "deliveries"))
    assert f"{count} of {count} records" in seen
    assert "/s" in seen
    assert "0:00:00" in seen
    past = ["--until", datetime.now(UTC).isoformat(), "--into", str(tmp_path / "past")]
    seen = _on_a_terminal([CARILLON, "replay", "targeting", *past], stopped.installation.env)
    announced = announcements(stopped.installation.data)
    assert announced > 0
    count = counts["devices"] - announced + counts["sessions"]
    assert "deciding device-commands again" in seen
    assert f"{count} of {count} records" in seen
    for extra in ([], ["--json"]):
        done = subprocess.run([*verify, *extra], env=stopped.installation.env, capture_output=True, text=True)
        assert done.stderr == ""
    assert json.loads(done.stdout)["equal"]


def _on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    """Run the command with a terminal as its standard error; return what it writes there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, env={**env, "TERM": "xterm", "COLUMNS": "160"}, stderr=theirs, stdout=subprocess.PIPE
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):
        while more := os.read(ours, 4096):
            seen += more
    os.close(ours)
    assert process.wait(30) == 0
    return seen.decode()
