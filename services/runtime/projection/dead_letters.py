"""Dead letters: records that cannot be decoded or applied are stored with their position, and reading continues."""

import base64
import json
from pathlib import Path

from services.runtime.errors import CarillonError
from services.runtime.log.port import Record
from services.runtime.process.logs import logger
from services.runtime.process.metrics import DEAD_LETTERS


class TooManyDeadLettersError(CarillonError):
    """The limit of dead letters is reached; the reader stops."""


class DeadLetters:
    """Appends dead letters to a file of JSON lines; `limit` of them in one run raise TooManyDeadLettersError."""

    def __init__(self, path: Path, role: str, limit: int = 100) -> None:
        self._path = path
        self._role = role
        self._limit = limit
        self._count = 0

    def add(self, record: Record, error: Exception) -> None:
        self._count += 1
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        line = {**position, "error": str(error), "value": base64.b64encode(record.value).decode()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        DEAD_LETTERS.labels(self._role).inc()
        logger.error("record dead-lettered", role=self._role, error=str(error), **position)
        if self._count >= self._limit:
            raise TooManyDeadLettersError(
                f"{self._role} stopped: {self._count} records could not be processed; they are in {self._path}."
                " Look at their errors, repair the writer or upgrade this role, then start it again"
            )
