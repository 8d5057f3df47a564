"""Finds the record of a push by any of its message ids."""

from base64 import b64decode
from typing import NamedTuple

from analytics.audit.details import command_origin
from analytics.audit.details_text import read_summary
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.details_pb2 import AudienceSummary, CommandOrigin
from protos.push.v1.push_pb2 import Filter
from services.errors import Code, NotFoundError

_MAX_IDS = 2**20
"""A push has fewer message ids than this."""

_MAX_KNOWN = 1000


class PushRecord(NamedTuple):
    """A row of `pushes`, or of `task_pushes` while the task is not sent.

    `filter` is a serialised Filter, or empty; `stored_summary` of another audience is a serialised AudienceSummary.
    `erased_ms`: since when the content is gone, because a device of the push is erased; else 0.
    """

    msgid: int
    last_msgid: int
    appkey: str
    kind: str
    audience: str
    filter: bytes
    stored_summary: bytes
    request_json: str
    time_ms: int
    task_key: str
    writer: str
    interface: str
    address: str
    request_id: str
    platform: str
    erased_ms: int

    @property
    def rule(self) -> Filter | None:
        """The filter of the audience; None for a list, and for all devices."""
        return Filter.FromString(self.filter) if self.filter else None

    @property
    def audience_summary(self) -> AudienceSummary:
        """The kind of the audience, or its filter."""
        return read_summary(self.stored_summary, self.filter)

    @property
    def origin(self) -> CommandOrigin:
        return command_origin(self.writer, self.interface, self.address, self.request_id)


async def find_push(clickhouse: ClickHouse, table: str, msgid: int) -> PushRecord | None:
    """Return the push that has this message id, as its first one or another of its list; `table`: see PushRecord."""
    parameters = {"table": table, "msgid": msgid, "lowest": max(0, msgid - _MAX_IDS)}
    rows = await clickhouse.rows(sql(__package__, "find_push"), parameters)
    if not rows:
        return None
    found = PushRecord(*rows[0])
    return found._replace(filter=b64decode(found.filter), stored_summary=b64decode(found.stored_summary))


async def find_planned(clickhouse: ClickHouse, msgid: int) -> PushRecord | None:
    """Return the push as it was sent; otherwise as its task was scheduled."""
    return await find_push(clickhouse, "pushes", msgid) or await find_push(clickhouse, "task_pushes", msgid)


class AppsOfPushes:
    """Finds the app of a push, which never changes; the latest answers are kept."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._known: dict[int, str] = {}

    async def find(self, msgid: int) -> str:
        """Return the appkey of the push with this message id; "" if there is none."""
        if msgid not in self._known:
            push = await find_planned(self._clickhouse, msgid)
            if push is None:
                return ""
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[msgid] = push.appkey
        return self._known[msgid]


def no_such_push(msgid: int) -> NotFoundError:
    return NotFoundError(Code.NO_SUCH_PUSH, msgid=str(msgid))
