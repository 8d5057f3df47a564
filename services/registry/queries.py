"""Queries of the registry beside its followers: look-ups of a few numbers in the event loop, all others in a thread."""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import TypeVar

import msgspec

from protos.registry.v1.devices_pb2 import Address, Device
from protos.registry.v1.registry_pb2 import AliasDevice, AliasDevices, InvalidToken, ListedAddress
from services.errors import BusyError
from services.process.worker_thread import WorkerThread
from services.replica.sqlite_store import SqliteStore

MAX_WAITING = 1_000
"""Upper bound of waiting queries; further ones raise BusyError."""

_FEW = 16
"""Upper bound of the numbers that are looked up in the event loop, in some 20 us; a call to a thread takes 100."""

_PAGE = 5_000
"""Devices that one query of a count reads, in some 30 ms; other queries are answered between two of these."""

INVALID_TOKENS = """
SELECT token, removed_ms FROM devices
WHERE invalid = 1 AND appkey = :appkey AND removed_ms <= :removed_ms AND (removed_ms < :removed_ms OR token > :token)
ORDER BY removed_ms DESC, token LIMIT :limit
"""
Answer = TypeVar("Answer")


class AliasRanking(Enum):
    """Which devices of an alias a query returns, and in which order."""

    BY_ACTIVITY = "by activity"
    PROVEN_FIRST = "proven first"
    PROVEN_ONLY = "proven only"
    ALL = "all, also those that are about to lose the alias"


class RegistryQueries:
    """Queries over what the followers have committed. Removed devices are not found unless requested.

    Every method raises what `check` raises: another process answers for the partitions, or the stores may be behind the
    log. Methods that use the thread raise BusyError when too many queries wait for it.
    """

    def __init__(self, devices: SqliteStore, aliases: SqliteStore, check: Callable[[], Awaitable[None]]) -> None:
        self._devices = devices.reading()
        self._few_devices = devices.reading()
        self._aliases = aliases.reading()
        self._thread = WorkerThread("registry-queries")
        self._waiting = 0
        self._check = check

    async def numbers(self, appkey: str, tokens: Sequence[str], *, removed_too: bool = False) -> list[int | None]:
        """Return the devices' numbers in the order of the tokens."""
        if len(tokens) <= _FEW:
            await self._check()
            return self._numbers_of_few(appkey, tokens, removed_too)
        return await self._run(self._numbers, appkey, tokens, removed_too)

    async def devices(self, appkey: str, tokens: Sequence[str], *, removed_too: bool = False) -> list[Device]:
        """Return the records of the tokens that are registered, in the order of the tokens."""
        return await self._run(self._records, appkey, tokens, removed_too)

    async def tokens(self, appkey: str, partition: int, numbers: Sequence[int]) -> list[tuple[str, int]]:
        """Return (token, last activity in ms) for each number of the partition, in order; ("", 0) if there is none."""
        return await self._run(self._tokens, appkey, partition, numbers)

    async def addresses(self, appkey: str, partition: int, numbers: Sequence[int], channel: int) -> list[Address]:
        """Return the address on the channel for each number of the partition, in order; an empty one if there is none.

        Of several devices with one address, only the one that set it last has it, if this instance owns the address's
        hash; otherwise also the others, until the owner of the hash has taken it from them.
        """
        return await self._run(self._addresses, appkey, partition, numbers, channel)

    async def find_addresses(self, appkey: str, hashes: Sequence[bytes]) -> list[str]:
        """Return the token of the device that has each address, in order; "" for one that none has here."""
        return await self._run(self._find_addresses, appkey, hashes)

    async def list_addresses(
        self, appkey: str, channel: int, after: ListedAddress | None, limit: int
    ) -> list[ListedAddress]:
        """Return the page of the app's addresses here that follows `after`, by token; 0: of all channels."""
        return await self._run(self._list_addresses, appkey, channel, after or ListedAddress(), limit)

    async def list_dead_addresses(
        self, appkey: str, channel: int, after: ListedAddress | None, limit: int
    ) -> list[ListedAddress]:
        """Return the page of the app's dead addresses here that follows `after`, latest first; 0: of all channels."""
        first = after or ListedAddress(dead_ms=2**63 - 1)
        return await self._run(self._list_dead_addresses, appkey, channel, first, limit)

    async def aliases(
        self, appkey: str, aliases: Sequence[str], ranking: AliasRanking = AliasRanking.BY_ACTIVITY
    ) -> list[AliasDevices]:
        """Return the devices of each alias, in the order of the aliases, most recently active first.

        The ranking puts devices that have proven the alias first, or returns them alone.

        Devices that were active in the same millisecond come in the order of partition and number, because the log has
        no order between partitions: so the answer is always the same, also after a rebuild.
        """
        return await self._run(self._aliased_devices, appkey, aliases, ranking)

    async def registered(self, appkey: str, tokens: Sequence[str]) -> tuple[int, list[str]]:
        """Return the number of the app's registered devices here, and which of the tokens are among them."""
        return await self._run(self._registered, appkey, tokens)

    async def count_silent(self, since_ms: int) -> int:
        """Return the number of registered devices without a sign of life since `since_ms`."""
        count, after = 0, 0
        while True:
            found, end = await self._run(self._count_silent, since_ms, after)
            if end == after:
                return count
            count, after = count + found, end

    async def invalid(self, appkey: str, after: InvalidToken | None, limit: int) -> list[InvalidToken]:
        """Return the page of the app's invalid tokens that follows `after`, latest first."""
        return await self._run(self._invalid, appkey, after or InvalidToken(removed_ms=2**63 - 1), limit)

    def close(self) -> None:
        self._thread.shutdown()
        self._devices.close()
        self._few_devices.close()
        self._aliases.close()

    async def _run(self, query: Callable[..., Answer], *arguments: object) -> Answer:
        await self._check()
        if self._waiting >= MAX_WAITING:
            raise BusyError("too many queries are waiting; try again")
        self._waiting += 1
        try:
            return await self._thread.call(partial(query, *arguments))
        finally:
            self._waiting -= 1

    def _count_silent(self, since_ms: int, after: int) -> tuple[int, int]:
        """Return the number of silent devices on a page, and where the page ends."""
        rows = self._devices.execute(
            "SELECT devices.rowid, iif(ifnull(active_ms, 0) < ?, record, NULL)"
            " FROM devices LEFT JOIN activity USING (appkey, partition, number)"
            " WHERE devices.rowid > ? AND removed_ms = 0 ORDER BY devices.rowid LIMIT ?",
            (since_ms, after, _PAGE),
        ).fetchall()
        silent = (Device.FromString(record) for _, record in rows if record is not None)
        count = sum(max(device.registered_ms, device.registered_again_ms) < since_ms for device in silent)
        return count, rows[-1][0] if rows else after

    def _numbers_of_few(self, appkey: str, tokens: Sequence[str], removed_too: bool) -> list[int | None]:
        marks = ", ".join("?" * len(tokens))
        rows = self._few_devices.execute(
            f"SELECT token, number FROM devices WHERE appkey = ? AND token IN ({marks})"  # noqa: S608
            " AND (removed_ms = 0 OR ?)",
            (appkey, *tokens, removed_too),
        )
        found = dict(rows.fetchall())
        return [found.get(token) for token in tokens]

    def _numbers(self, appkey: str, tokens: Sequence[str], removed_too: bool) -> list[int | None]:
        rows = self._devices.execute(
            "SELECT token, number FROM json_each(?) AS requested CROSS JOIN devices"
            " ON appkey = ? AND token = requested.value WHERE removed_ms = 0 OR ?",
            (_json(tokens), appkey, removed_too),
        )
        found = dict(rows.fetchall())
        return [found.get(token) for token in tokens]

    def _registered(self, appkey: str, tokens: Sequence[str]) -> tuple[int, list[str]]:
        row = self._devices.execute("SELECT registered FROM device_counts WHERE appkey = ?", (appkey,)).fetchone()
        numbers = self._numbers(appkey, tokens, False)
        known = [token for token, number in zip(tokens, numbers, strict=True) if number is not None]
        return int(row[0]) if row else 0, known

    def _records(self, appkey: str, tokens: Sequence[str], removed_too: bool) -> list[Device]:
        rows = self._devices.execute(
            "SELECT record FROM json_each(?) AS requested CROSS JOIN devices"
            " ON appkey = ? AND token = requested.value WHERE removed_ms = 0 OR ? ORDER BY requested.key",
            (_json(tokens), appkey, removed_too),
        )
        return [Device.FromString(record) for (record,) in rows]

    def _tokens(self, appkey: str, partition: int, numbers: Sequence[int]) -> list[tuple[str, int]]:
        rows = self._devices.execute(
            "SELECT number, token, ifnull(active_ms, 0) FROM json_each(?) AS requested CROSS JOIN devices"
            " ON appkey = ? AND partition = ? AND number = requested.value"
            " LEFT JOIN activity USING (appkey, partition, number) WHERE removed_ms = 0",
            (_json(numbers), appkey, partition),
        )
        found = {number: (token, active_ms) for number, token, active_ms in rows.fetchall()}
        return [found.get(number, ("", 0)) for number in numbers]

    def _addresses(self, appkey: str, partition: int, numbers: Sequence[int], channel: int) -> list[Address]:
        # A mark as surplus goes once the device's record is without the address, so marks are read before records.
        surplus = self._aliases.execute(
            "SELECT token FROM json_each(?) AS requested CROSS JOIN addresses INDEXED BY addresses_surplus"
            " ON appkey = ? AND token = requested.value AND channel = ? WHERE surplus_by IS NOT NULL",
            (_json([token for token, _ in self._tokens(appkey, partition, numbers)]), appkey, channel),
        )
        taken = {token for (token,) in surplus.fetchall()}
        rows = self._devices.execute(
            "SELECT number, token, record FROM json_each(?) AS requested CROSS JOIN devices"
            " ON appkey = ? AND partition = ? AND number = requested.value WHERE removed_ms = 0",
            (_json(numbers), appkey, partition),
        )
        found = {
            number: address
            for number, token, record in rows
            if token not in taken
            for address in Device.FromString(record).addresses
            if address.channel == channel
        }
        return [found.get(number, Address()) for number in numbers]

    def _find_addresses(self, appkey: str, hashes: Sequence[bytes]) -> list[str]:
        marks = ",".join("?" * len(hashes))
        rows = self._aliases.execute(
            "SELECT hash, token FROM addresses INDEXED BY addresses_by_hash"  # noqa: S608
            f" WHERE appkey = ? AND hash IN ({marks}) AND surplus_by IS NULL",
            (appkey, *hashes),
        )
        found = dict(rows.fetchall())
        return [found.get(hash_, "") for hash_ in hashes]

    def _list_addresses(self, appkey: str, channel: int, after: ListedAddress, limit: int) -> list[ListedAddress]:
        order = "INDEXED BY addresses_by_channel WHERE channel = :channel AND" if channel else "WHERE"
        rows = self._aliases.execute(
            f"SELECT token, channel, hash, since_ms FROM addresses {order} appkey = :appkey"  # noqa: S608
            " AND (token, channel) > (:token, :on) AND surplus_by IS NULL ORDER BY token, channel LIMIT :limit",
            {"appkey": appkey, "token": after.token, "on": int(after.channel), "channel": channel, "limit": limit},
        )
        return [ListedAddress(token=token, channel=on, hash=hash_, since_ms=ms) for token, on, hash_, ms in rows]

    def _list_dead_addresses(self, appkey: str, channel: int, after: ListedAddress, limit: int) -> list[ListedAddress]:
        order = "by_channel WHERE channel = :channel AND" if channel else "by_time WHERE"
        rows = self._aliases.execute(
            f"SELECT token, channel, hash, dead_ms, reason FROM dead_addresses INDEXED BY dead_addresses_{order}"  # noqa: S608
            " appkey = :appkey AND dead_ms <= :dead_ms AND (dead_ms < :dead_ms OR (token, channel) > (:token, :on))"
            " ORDER BY dead_ms DESC, token, channel LIMIT :limit",
            {
                "appkey": appkey,
                "dead_ms": after.dead_ms,
                "token": after.token,
                "on": int(after.channel),
                "channel": channel,
                "limit": limit,
            },
        )
        return [
            ListedAddress(token=token, channel=on, hash=hash_, dead_ms=dead_ms, dead_reason=reason)
            for token, on, hash_, dead_ms, reason in rows
        ]

    def _invalid(self, appkey: str, after: InvalidToken, limit: int) -> list[InvalidToken]:
        page = {"appkey": appkey, "removed_ms": after.removed_ms, "token": after.token, "limit": limit}
        rows = self._devices.execute(INVALID_TOKENS, page)
        return [InvalidToken(token=token, removed_ms=removed_ms) for token, removed_ms in rows]

    def _aliased_devices(
        self, appkey: str, aliases: Sequence[str], ranking: AliasRanking = AliasRanking.BY_ACTIVITY
    ) -> list[AliasDevices]:
        rows = self._aliases.execute(
            "SELECT requested.key, token, partition, number, max(used_ms, since_ms) AS active_ms, proven"
            " FROM json_each(?) AS requested"
            " CROSS JOIN members INDEXED BY members_by_alias ON appkey = ? AND alias = requested.value"
            " WHERE (dropped_by IS NULL OR ?) AND proven >= ?"
            " ORDER BY requested.key, max(proven, ?) DESC, active_ms DESC, partition, number",
            (
                _json(aliases),
                appkey,
                int(ranking is AliasRanking.ALL),
                int(ranking is AliasRanking.PROVEN_ONLY),
                # max(proven, 1) is equal for all: activity orders
                int(ranking in (AliasRanking.BY_ACTIVITY, AliasRanking.ALL)),
            ),
        )
        found = [AliasDevices() for _ in aliases]
        for index, token, partition, number, active_ms, proven in rows:
            device = AliasDevice(
                token=token, partition=partition, number=number, last_active_ms=active_ms, proven=bool(proven)
            )
            found[index].devices.append(device)
        return found


def _json(values: Sequence[str] | Sequence[int]) -> str:
    return msgspec.json.encode(list(values)).decode()
