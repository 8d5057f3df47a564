"""A push as it was asked for, found by any of its message ids."""

from base64 import b64decode
from typing import NamedTuple

from analytics.audit.timeline import source
from analytics.store.clickhouse import ClickHouse
from services.runtime.errors import NotFoundError

_WIDEST = 2**20
"""A push has fewer ids than this."""

_FIND = """
SELECT
  msgid, last_msgid, appkey, kind, audience, base64Encode(filter), request_json, toUnixTimestamp64Milli(time), task_key,
  writer, door, address, request_id, platform
FROM {table:Identifier} FINAL
WHERE msgid BETWEEN {lowest:UInt64} AND {msgid:UInt64} AND last_msgid >= {msgid:UInt64}
ORDER BY msgid DESC LIMIT 1
"""


class Push(NamedTuple):
    """A row of `pushes`, or of `task_pushes` while its task is not sent. `filter` is a serialised Filter."""

    msgid: int
    last_msgid: int
    appkey: str
    kind: str
    audience: str
    filter: bytes
    request_json: str
    time_ms: int
    task_key: str
    writer: str
    door: str
    address: str
    request_id: str
    platform: str

    @property
    def source(self) -> str:
        return source(self.writer, self.door, self.address, self.request_id)


async def find_push(clickhouse: ClickHouse, table: str, msgid: int) -> Push | None:
    """The push that has this message id, its first one or another of its list; `table` is one of the two."""
    parameters = {"table": table, "msgid": msgid, "lowest": max(0, msgid - _WIDEST)}
    rows = await clickhouse.rows(_FIND, parameters)
    return Push(*rows[0])._replace(filter=b64decode(rows[0][5])) if rows else None


def no_such_push(msgid: int) -> NotFoundError:
    return NotFoundError(f"the event log knows no push with the message id {msgid}")
