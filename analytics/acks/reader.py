"""Pages of acknowledgements: what devices confirmed of unicast messages, read partition by partition of the log.

A record is visible some time after its receipt, once all before it in its partition are. A page takes the visible
records by the moment they became so; the position notes how far it came in each partition. So whatever arrives
late stands behind every position given out before, and reading misses and repeats nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from analytics.acks.positions import Place, Places
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import Ack
from services.runtime.errors import UnavailableError

RETENTION_MS = 2 * 86_400_000
_FIRST_WIDTH = 16
_GROWTH = 8
_ROWS_BEYOND = 16

_OF_PARTITION = "transform(partition, {{partitions:Array(UInt16)}}, {{{}:Array({})}}, 0)"
_WINDOWS = f"""
SELECT partition, _offset, _index, msgid, number, toUnixTimestamp64Milli(time) FROM acks
WHERE appkey = {{appkey:String}} AND time > fromUnixTimestamp64Milli({{kept_ms:Int64}})
  AND partition IN {{partitions:Array(UInt16)}} AND _offset >= {{first:UInt64}} AND _offset < {{end:UInt64}}
  AND _offset < {_OF_PARTITION.format("ends", "UInt64")}
  AND (_offset, _index) >= ({_OF_PARTITION.format("offsets", "UInt64")}, {_OF_PARTITION.format("rows", "UInt32")})
ORDER BY partition, _offset, _index LIMIT {{most:UInt32}} BY partition
"""  # noqa: S608
_OTHERS = """
SELECT msgid FROM pushes WHERE msgid IN {msgids:Array(UInt64)} AND (kind != 'unicast' OR platform != 'android')
"""
_FIRSTS = """
SELECT partition, number, msgid, min((_offset, _index)) FROM (
  SELECT partition, number, msgid, _offset, _index FROM deliveries
  WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} AND kind = 'received'
  UNION ALL
  SELECT partition, number, msgid, _offset, _index FROM acks
  WHERE appkey = {appkey:String} AND (partition, _offset) IN {records:Array(Tuple(UInt16, UInt64))}
    AND msgid IN {msgids:Array(UInt64)})
GROUP BY partition, number, msgid
"""
_TOKENS = """
SELECT partition, number, token FROM device_tokens
WHERE appkey = {appkey:String} AND device IN {devices:Array(UInt64)}
"""
_ENDS = "SELECT partition, max(_offset) + 1 FROM acks WHERE appkey = {appkey:String} GROUP BY partition"


class Receipt(NamedTuple):
    """One row of `acks`; `visible_ms` is the latest time of it and of those before it in its partition."""

    visible_ms: int
    partition: int
    offset: int
    row: int
    msgid: int
    number: int


class Page(NamedTuple):
    acks: list[Ack]
    places: Places
    has_more: bool


class AckReader:
    """Reads the pages of one app, as it is at one moment: what was received until `visible_ms`, in milliseconds.

    `ends` says, for each partition, up to which offset everything is in the store; partitions that others ingest are
    missing there. `catch_up` takes in what else is in the log, and tells how many records are missing after it.
    """

    def __init__(
        self,
        clickhouse: ClickHouse,
        appkey: str,
        partitions: int,
        ends: Mapping[int, int],
        catch_up: Callable[[], Awaitable[int]],
        *,
        now_ms: int,
        visible_ms: int,
    ) -> None:
        self._visible_ms = visible_ms
        self._kept_ms = now_ms - RETENTION_MS
        self._clickhouse = clickhouse
        self._appkey = appkey
        self._partitions = partitions
        self._ends = dict(ends)
        self._catch_up = catch_up

    async def page(self, start: Places, limit: int) -> Page:
        """Up to `limit` acknowledgements from `start` on."""
        await self._ask_ends()
        acks: list[Ack] = []
        places = dict(start)
        while receipts := await self._receipts(places, limit + 1 - len(acks)):
            confirmed = await self._confirmed(receipts)
            for receipt, ack in zip(receipts, confirmed, strict=True):
                if ack and len(acks) == limit:
                    return Page(acks, places, has_more=True)
                places[receipt.partition] = Place(receipt.offset, receipt.row + 1)
                if ack:
                    acks.append(ack)
        return Page(acks, places, has_more=False)

    async def _ask_ends(self) -> None:
        if len(self._ends) < self._partitions:
            for partition, end in await self._clickhouse.rows(_ENDS, {"appkey": self._appkey}):
                self._ends.setdefault(partition, end)

    async def _receipts(self, places: Places, count: int) -> list[Receipt]:
        """The next visible receipts, `count` of them unless there are fewer."""
        width, rows = _FIRST_WIDTH, _ROWS_BEYOND + 5 * count // (4 * self._partitions)
        while True:
            receipts, is_all = await self._receipts_within(places, width, rows)
            if is_all or len(receipts) >= count:
                return receipts[:count]
            width, rows = width * _GROWTH, rows * 2

    async def _receipts_within(self, places: Places, width: int, most: int) -> tuple[list[Receipt], bool]:
        """Those before which nothing else can come, in order, and whether these are all; looking at the next `width`
        records of each partition and at `most` receipts in them."""
        starts = {
            partition: places.get(partition, Place(0, 0))
            for partition, end in self._ends.items()
            if partition not in places or places[partition].offset < end
        }
        if not starts:
            return [], True
        found = await self._rows(starts, width, most)
        receipts: list[Receipt] = []
        known_until: list[tuple[int, ...]] = []
        for partition, start in starts.items():
            rows = found.get(partition, [])
            visible = list(self._visible(rows))
            receipts += visible
            is_cut = len(rows) >= most or start.offset + width < self._ends[partition]
            if is_cut and len(visible) == len(rows):
                known_until.append(visible[-1] if visible else (0,))
        return sorted(r for r in receipts if not known_until or r <= min(known_until)), not known_until

    async def _rows(
        self, starts: Mapping[int, Place], width: int, most: int
    ) -> dict[int, list[tuple[int, int, int, int, int, int]]]:
        ends = [min(place.offset + width, self._ends[partition]) for partition, place in starts.items()]
        offsets = [place.offset for place in starts.values()]
        parameters = {
            **{"appkey": self._appkey, "kept_ms": self._kept_ms, "most": most, "partitions": list(starts)},
            **{"offsets": offsets, "rows": [place.row for place in starts.values()], "ends": ends},
            **{"first": min(offsets), "end": max(ends)},
        }
        rows = await self._clickhouse.rows(_WINDOWS, parameters)
        return {
            partition: [(*row,) for row in of_partition]
            for partition, of_partition in groupby(rows, key=lambda row: row[0])
        }

    def _visible(self, rows: Sequence[tuple[int, int, int, int, int, int]]) -> Iterator[Receipt]:
        """Up to the first one that is not. Rows of a record that was inserted twice count once."""
        latest_ms = 0
        before = None
        for partition, offset, index, msgid, number, time_ms in rows:
            latest_ms = max(latest_ms, time_ms)
            if latest_ms > self._visible_ms:
                return
            if before != (offset, index):
                yield Receipt(latest_ms, partition, offset, index, msgid, number)
            before = (offset, index)

    async def _confirmed(self, receipts: Sequence[Receipt]) -> list[Ack | None]:
        """Each receipt's acknowledgement; None for what is no unicast to Android, or stands in the log twice.

        UnavailableError: what the log says of a device is not in the store yet.
        """
        msgids = sorted({receipt.msgid for receipt in receipts})
        records = sorted({(receipt.partition, receipt.offset) for receipt in receipts})
        others, firsts, token = await asyncio.gather(
            self._clickhouse.rows(_OTHERS, {"msgids": msgids}),
            self._clickhouse.rows(_FIRSTS, {"appkey": self._appkey, "msgids": msgids, "records": records}),
            self._tokens({(receipt.partition, receipt.number) for receipt in receipts}),
        )
        not_unicast = {msgid for (msgid,) in others}
        first = {(partition, number, msgid): tuple(place) for partition, number, msgid, place in firsts}

        def ack(receipt: Receipt) -> Ack | None:
            of_device = (receipt.partition, receipt.number)
            place = (receipt.offset, receipt.row)
            is_repeated = first.get((*of_device, receipt.msgid), place) < place
            if is_repeated or receipt.msgid in not_unicast or of_device not in token:
                return None
            return Ack(msgid=receipt.msgid, token=token[of_device])

        return [ack(receipt) for receipt in receipts]

    async def _tokens(self, devices: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """By (partition, number); devices that the whole log does not know are left out."""
        tokens = await self._known_tokens(devices)
        if len(tokens) < len(devices):
            behind = await self._catch_up()
            tokens = await self._known_tokens(devices)
            if len(tokens) < len(devices) and behind:
                raise UnavailableError(f"analytics is {behind} records behind the event log; try again later")
        return tokens

    async def _known_tokens(self, devices: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
        wanted = sorted(partition << 32 | number for partition, number in devices)
        rows = await self._clickhouse.rows(_TOKENS, {"appkey": self._appkey, "devices": wanted})
        return {(partition, number): token for partition, number, token in rows}
