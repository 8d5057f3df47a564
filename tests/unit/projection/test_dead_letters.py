"""Dead letters are stored whole, and too many of them stop the reader."""

import base64
import json
from pathlib import Path

import pytest

from services.runtime.log.port import Record
from services.runtime.projection.dead_letters import DeadLetters, TooManyDeadLettersError

RECORD = Record("devices", 3, 41, b"1000000001/t", b"\xff\x00 canary")


def test_a_dead_letter_keeps_its_position_and_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "dead-letters" / "registry.jsonl"
    DeadLetters(file, "registry").add(RECORD, ValueError("no envelope"))
    (line,) = map(json.loads, file.read_text().splitlines())
    assert base64.b64decode(line.pop("value")) == RECORD.value
    assert line == {"topic": "devices", "partition": 3, "offset": 41, "error": "no envelope"}


def test_dead_letters_of_earlier_runs_stay(tmp_path: Path) -> None:
    for _ in range(3):
        DeadLetters(tmp_path / "p.jsonl", "registry", limit=2).add(RECORD, ValueError("no envelope"))
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 3


def test_the_limit_stops_the_reader_after_the_record_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    dead_letters = DeadLetters(file, "registry", limit=2)
    dead_letters.add(RECORD, ValueError("first"))
    with pytest.raises(TooManyDeadLettersError, match=rf"^registry stopped: 2 records .* {file}\.") as raised:
        dead_letters.add(RECORD, ValueError("second"))
    assert "\n" not in str(raised.value)
    assert [json.loads(line)["error"] for line in file.read_text().splitlines()] == ["first", "second"]
