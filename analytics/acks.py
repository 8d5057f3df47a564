"""Pages of acknowledgements: receipts of unicast messages, read in the order of the log's partitions.

A receipt becomes visible a fixed delay after it was received, and not before all receipts ahead of it in its partition.
A page has the visible receipts in the order in which they became visible; its position tells how far each partition
was read. A late receipt therefore comes after every position returned before, and readers miss and repeat nothing.
"""

import asyncio
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Annotated, NamedTuple

import msgspec

from analytics.store.clickhouse import ClickHouse
from analytics.store.device_tokens import device_tokens
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import Ack
from services.errors import InputError, UnavailableError

# Read positions of acknowledgements: how far each partition was read, and their encoding as opaque text.

START = "0"
_CHECK_BYTES = 4
_LONGEST = 64 * 1024
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ReadPosition(NamedTuple):
    """The first record of a partition, and the row in it, that was not read yet.

    Both come from the log alone, so positions stay valid when the store is rebuilt.
    """

    offset: int
    row: int


ReadPositions = Mapping[int, ReadPosition]
"""Positions by partition; a partition that is missing is read from its beginning."""


def encode(appkey: str, positions: ReadPositions) -> str:
    """Return the positions as text in URL-safe base64, with a checksum of the app and the positions."""
    if not positions:
        return START
    flat = [number for partition, position in sorted(positions.items()) for number in (partition, *position)]
    body = msgspec.msgpack.encode(flat)
    return urlsafe_b64encode(_check(appkey, body) + body).decode().rstrip("=")


def decode_positions(appkey: str, text: str) -> dict[int, ReadPosition]:
    """Return the positions of a text. InputError: `encode` did not return this text for this app."""
    if text == START:
        return {}
    try:
        blob = urlsafe_b64decode(text[:_LONGEST] + "=" * (-len(text) % 4))
        flat = msgspec.msgpack.decode(blob[_CHECK_BYTES:], type=list[_Number])
    except (ValueError, msgspec.DecodeError):
        flat = []
    positions = {
        partition: ReadPosition(offset, index)
        for partition, offset, index in zip(flat[::3], flat[1::3], flat[2::3], strict=False)
    }
    if not all(one < other for one, other in pairwise(positions)) or encode(appkey, positions) != text:
        raise InputError("pos is no position that was given out for this app")
    return positions


def _check(appkey: str, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(appkey.encode())).to_bytes(_CHECK_BYTES, "big")


RETENTION_MS = 2 * 86_400_000
_FIRST_WINDOW = 16
_GROWTH = 4
_GROWTH_IF_EMPTY = 16
"""Factors by which the window of records grows: after one with too few receipts, and after one without any."""

_SPARE_ROWS = 16
_START = ReadPosition(0, 0)

_NOT_ANDROID_UNICAST = """
SELECT msgid FROM pushes WHERE msgid IN {msgids:Array(UInt64)} AND (kind != 'unicast' OR platform != 'android')
"""
_ENDS = "SELECT partition, max(_offset) + 1 FROM acks WHERE appkey = {appkey:String} GROUP BY partition"


class Receipt(NamedTuple):
    """A row of `acks`. Pages are sorted by `visible_ms`: the latest receive time among this receipt and those that the
    same query read before it in its partition.
    """

    visible_ms: int
    partition: int
    offset: int
    row: int
    msgid: int
    number: int


class AckPage(NamedTuple):
    acks: list[Ack]
    positions: ReadPositions
    has_more: bool


class AckReader:
    """Reads pages of one app as of one moment: receipts received until `visible_ms`, in milliseconds since 1970 UTC.

    `ends`: for each partition that this instance ingests, the offset before which everything is in the store.
    `catch_up` ingests what else is in the log, and returns how many records are missing after that.
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

    async def page(self, start: ReadPositions, limit: int) -> AckPage:
        """Return up to `limit` acknowledgements from `start` on."""
        await self._complete_ends()
        acks: list[Ack] = []
        positions = dict(start)
        while receipts := await self._receipts(positions, limit + 1 - len(acks)):
            page_acks = await self._acks(receipts)
            for receipt, ack in zip(receipts, page_acks, strict=True):
                if ack and len(acks) == limit:
                    return AckPage(acks, positions, has_more=True)
                positions[receipt.partition] = ReadPosition(receipt.offset, receipt.row + 1)
                if ack:
                    acks.append(ack)
        return AckPage(acks, positions, has_more=False)

    async def _complete_ends(self) -> None:
        """Read from the store the ends of the partitions that other instances ingest."""
        if len(self._ends) < self._partitions:
            for partition, end in await self._clickhouse.rows(_ENDS, {"appkey": self._appkey}):
                self._ends.setdefault(partition, end)

    async def _receipts(self, positions: ReadPositions, count: int) -> list[Receipt]:
        """Return the next `count` visible receipts, or all if there are fewer."""
        window, rows = _FIRST_WINDOW, _SPARE_ROWS + 5 * count // (4 * self._partitions)
        while True:
            receipts, is_all = await self._receipts_within(positions, window, rows)
            if is_all or len(receipts) >= count:
                return receipts[:count]
            window, rows = (window * _GROWTH, rows * 2) if receipts else (window * _GROWTH_IF_EMPTY, rows)

    async def _receipts_within(self, positions: ReadPositions, window: int, most: int) -> tuple[list[Receipt], bool]:
        """Read the next `window` records of each partition, and at most `most` receipts of them.

        Return the receipts that no unread one can precede, in order, and whether these are all visible receipts.
        """
        starts = {
            partition: positions.get(partition, _START)
            for partition, end in self._ends.items()
            if partition not in positions or positions[partition].offset < end
        }
        if not starts:
            return [], True
        found = await self._rows(starts, window, most)
        receipts: list[Receipt] = []
        known_until: list[tuple[int, ...]] = []
        for partition, start in starts.items():
            rows = found.get(partition, [])
            visible = list(self._visible(rows))
            receipts += visible
            is_cut = len(rows) >= most or start.offset + window < self._ends[partition]
            if is_cut and len(visible) == len(rows):
                known_until.append(visible[-1] if visible else (0,))
        return sorted(r for r in receipts if not known_until or r <= min(known_until)), not known_until

    async def _rows(
        self, starts: ReadPositions, window: int, most: int
    ) -> dict[int, list[tuple[int, int, int, int, int, int]]]:
        ends = {partition: min(start.offset + window, self._ends[partition]) for partition, start in starts.items()}
        every = range(max(starts) + 1)
        parameters = {
            **{"appkey": self._appkey, "kept_ms": self._kept_ms, "most": most},
            **{"first": min(start.offset for start in starts.values()), "end": max(ends.values())},
            "ends": [ends.get(partition, 0) for partition in every],
            "offsets": [starts.get(partition, _START).offset for partition in every],
            "rows": [starts.get(partition, _START).row for partition in every],
        }
        rows = await self._clickhouse.rows(sql(__package__, "receipts"), parameters)
        return {
            partition: [(*row,) for row in of_partition]
            for partition, of_partition in groupby(rows, key=lambda row: row[0])
        }

    def _visible(self, rows: Sequence[tuple[int, int, int, int, int, int]]) -> Iterator[Receipt]:
        """Yield receipts up to the first that is not visible. Rows that were inserted twice count once."""
        latest_ms = 0
        previous = None
        for partition, offset, index, msgid, number, time_ms in rows:
            latest_ms = max(latest_ms, time_ms)
            if latest_ms > self._visible_ms:
                return
            if previous != (offset, index):
                yield Receipt(latest_ms, partition, offset, index, msgid, number)
            previous = (offset, index)

    async def _acks(self, receipts: Sequence[Receipt]) -> list[Ack | None]:
        """Return each receipt's acknowledgement; None for a repeated receipt, or one of no unicast to Android.

        UnavailableError: the record of a receipt's device is not in the store yet.
        """
        msgids = sorted({receipt.msgid for receipt in receipts})
        offsets = sorted({receipt.offset for receipt in receipts})
        of_app = {"appkey": self._appkey, "msgids": msgids}
        excluded, firsts, repeated, tokens = await asyncio.gather(
            self._clickhouse.rows(_NOT_ANDROID_UNICAST, {"msgids": msgids}),
            self._clickhouse.rows(sql(__package__, "first_receipts"), of_app),
            self._clickhouse.rows(sql(__package__, "repeated_in_record"), {**of_app, "offsets": offsets}),
            self._tokens({(receipt.partition, receipt.number) for receipt in receipts}),
        )
        excluded_msgids = {msgid for (msgid,) in excluded}
        first = {(partition, number, msgid): offset for partition, number, msgid, offset, _ in firsts}
        first_rows = {(*record, number, msgid): row for *record, number, msgid, row in repeated}
        handed = {(partition, number, msgid): channel for partition, number, msgid, _, channel in firsts if channel}

        def ack(receipt: Receipt) -> Ack | None:
            device = (receipt.partition, receipt.number)
            message = (*device, receipt.msgid)
            in_record = (receipt.partition, receipt.offset, receipt.number, receipt.msgid)
            is_repeated = (
                first.get(message, receipt.offset) < receipt.offset
                or first_rows.get(in_record, receipt.row) < receipt.row
            )
            if is_repeated or receipt.msgid in excluded_msgids or device not in tokens:
                return None
            return Ack(msgid=receipt.msgid, token=tokens[device], channel=handed.get(message, ""))

        return [ack(receipt) for receipt in receipts]

    async def _tokens(self, devices: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Return tokens by (partition, number); devices without a record in the whole log are left out."""
        tokens = await device_tokens(self._clickhouse, self._appkey, devices)
        if len(tokens) < len(devices):
            behind = await self._catch_up()
            tokens = await device_tokens(self._clickhouse, self._appkey, devices)
            if len(tokens) < len(devices) and behind:
                raise UnavailableError(f"analytics is {behind} records behind the event log; try again later")
        return tokens
