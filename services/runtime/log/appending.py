"""Appending facts that must get into the log."""

import asyncio
from collections.abc import Sequence

from services.runtime.errors import BusyError, UnavailableError
from services.runtime.log.port import Log, NewRecord
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPENDED

_RETRY_S = 0.5


async def append_until_accepted(log: Log, new_records: Sequence[NewRecord], role: str) -> list[int]:
    """Append until the log accepts the records; return the offset of each."""
    while True:
        try:
            offsets = await log.append(new_records)
        except (BusyError, UnavailableError) as error:
            logger.warning("the log does not accept facts; trying again", role=role, error=str(error))
            await asyncio.sleep(_RETRY_S)
        else:
            for new_record in new_records:
                APPENDED.labels(new_record.topic).inc()
            return offsets
