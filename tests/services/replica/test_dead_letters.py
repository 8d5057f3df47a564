"""Dead letters are stored whole, and too many of them stop the reader."""

import base64
import json
from pathlib import Path

import pytest

from services.log.port import NewRecord, Record
from services.replica.dead_letters import DeadLetters, TooManyDeadLettersError
from tests.services.replica.tally_role import COMMANDS, FaultyAppendsLog, Role, settled, tally, write

RECORD = Record("devices", 3, 41, b"1000000001/t", b"\xff\x00 canary")


def test_a_dead_letter_keeps_its_position_and_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "dead-letters" / "registry.jsonl"
    DeadLetters(file, "registry").add(RECORD, ValueError("no envelope"))
    (line,) = map(json.loads, file.read_text().splitlines())
    assert base64.b64decode(line.pop("value")) == RECORD.value
    assert line == {"topic": "devices", "partition": 3, "offset": 41, "error": "no envelope"}


def record(offset: int) -> Record:
    return RECORD._replace(offset=offset)


def test_a_record_is_stored_and_counted_once_over_all_runs(tmp_path: Path) -> None:
    """A line that a kill has cut off is written again."""
    file = tmp_path / "p.jsonl"
    for _ in range(3):
        dead_letters = DeadLetters(file, "registry", limit=3)
        for offset in (41, 41, 42):
            dead_letters.add(record(offset), ValueError("no envelope"))
    lines = file.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["offset"] for line in lines] == [41, 42]
    file.write_bytes(b"".join([lines[0], lines[1][:30]]))
    DeadLetters(file, "registry").add(record(42), ValueError("no envelope"))
    assert json.loads(file.read_text().splitlines()[-1])["offset"] == 42


def test_the_limit_stops_the_reader_after_the_record_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    dead_letters = DeadLetters(file, "registry", limit=2)
    dead_letters.add(record(1), ValueError("first"))
    with pytest.raises(TooManyDeadLettersError, match=rf"^registry stopped: 2 records .* {file}\.") as raised:
        dead_letters.add(record(2), ValueError("second"))
    assert "\n" not in str(raised.value)
    assert [json.loads(line)["error"] for line in file.read_text().splitlines()] == ["first", "second"]


async def test_a_role_goes_on_behind_the_bad_records_that_stopped_it(log: FaultyAppendsLog, tmp_path: Path) -> None:
    """All of them came in one batch, none of which was committed."""
    bad = [NewRecord(COMMANDS[0].topic, COMMANDS[0].number, b"a", b"\xff is no command")] * 150
    await log.append(bad)
    good = await write(log, "a")
    await Role(log, tmp_path).died_of(TooManyDeadLettersError)
    role = Role(log, tmp_path)
    await settled(role, good)
    assert tally(role.store) == {"a": 1}
    await role.stop()
    assert len((tmp_path / "dead-letters.jsonl").read_text().splitlines()) == 150
