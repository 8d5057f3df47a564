"""The index of addresses: which devices of an app have one address, so that only the one that set it last keeps it.

Two devices with one address are one phone or browser, restored from a backup or cloned: it would show each push twice.
Like an alias, an address may be at devices of any partitions. So each instance indexes the addresses whose hash it
owns, out of all partitions, and the devices that lose one get a ClearAddress. Beside them it keeps the dead addresses:
those that a vendor said are dead, until the device sets another one, at most one for each device and channel.

The index knows addresses by their hashes. An entry takes about 250 bytes.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, assert_never

from protos.gateway.v1.sessions_pb2 import SessionFact
from protos.registry.v1.devices_pb2 import Address, AddressLost, ClearAddress, Device, DeviceCommand, DeviceFact
from services.domain.addresses import address_hash
from services.domain.ids import RecordStamp
from services.domain.topics import DEVICE_COMMANDS, device_key
from services.log.port import Record
from services.log.topics import partition_of
from services.process.clock import Clock
from services.registry.state import record_id
from services.registry.store import is_erased
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact

SWEEP_MS = 30_000
"""Time between two sweeps; an address that was surplus at the latest one, and still is, is cleared once more."""

_SWEPT = 1000
"""Addresses that one sweep looks at."""

ADDRESSES_DDL = """
CREATE TABLE addresses (
  appkey TEXT NOT NULL, token TEXT NOT NULL, channel INTEGER NOT NULL, partition INTEGER NOT NULL, hash BLOB NOT NULL,
  since_ms INTEGER NOT NULL, surplus_by TEXT, number INTEGER NOT NULL,
  PRIMARY KEY (appkey, token, channel)) WITHOUT ROWID;
CREATE INDEX addresses_by_number ON addresses (appkey, partition, number);
CREATE INDEX addresses_by_hash ON addresses (appkey, hash);
CREATE INDEX addresses_surplus ON addresses (appkey, token, channel) WHERE surplus_by IS NOT NULL;
CREATE INDEX addresses_by_channel ON addresses (appkey, channel, token) WHERE surplus_by IS NULL;
CREATE TABLE dead_addresses (
  appkey TEXT NOT NULL, token TEXT NOT NULL, channel INTEGER NOT NULL, hash BLOB NOT NULL, dead_ms INTEGER NOT NULL,
  reason TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL,
  PRIMARY KEY (appkey, token, channel)) WITHOUT ROWID;
CREATE INDEX dead_addresses_by_number ON dead_addresses (appkey, partition, number);
CREATE INDEX dead_addresses_by_time ON dead_addresses (appkey, dead_ms DESC, token, channel);
CREATE INDEX dead_addresses_by_channel ON dead_addresses (appkey, channel, dead_ms DESC, token);
"""


class SurplusAddress(NamedTuple):
    """An address of a device that another device has set since, `keeper`."""

    appkey: str
    token: str
    channel: int
    partition: int
    hash: bytes
    since_ms: int
    keeper: str

    @property
    def of(self) -> tuple[str, str, int, int]:
        """The device, the channel, and since when it has the address: what stays while the address is surplus."""
        return self.appkey, self.token, self.channel, self.since_ms


_SURPLUS = """
SELECT appkey, token, channel, partition, hash, since_ms,
  (SELECT token FROM addresses AS kept INDEXED BY addresses_by_hash
   WHERE kept.appkey = addresses.appkey AND kept.hash = addresses.hash AND kept.surplus_by IS NULL)
FROM addresses"""


class AddressTable:
    """The addresses by device and by hash; only the addresses whose hash this instance owns are stored.

    `_apps`: the apps that have or had addresses; records of the devices of all others cost no query.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows
        query = "SELECT appkey FROM addresses UNION SELECT appkey FROM dead_addresses"
        self._apps = {appkey for (appkey,) in self._rows.execute(query)}

    def concerns(self, device: Device) -> bool:
        """Return whether the device's record may change the table."""
        return bool(device.addresses or device.addresses_lost) or device.appkey in self._apps

    def put(
        self, device: Device, addresses: Sequence[tuple[Address, bytes]], dead: Sequence[AddressLost]
    ) -> set[bytes]:
        """Replace the addresses of the device, given with their hashes, and its dead ones.

        Return the hashes of the addresses where anything has changed: those that it has and those that it lost.
        """
        self._apps.add(device.appkey)
        key = device.appkey, device.token
        rows = self._rows.execute(
            "SELECT channel, hash, since_ms, NULL, number FROM addresses WHERE appkey = ? AND token = ?"
            " UNION ALL SELECT channel, hash, dead_ms, reason, number FROM dead_addresses"
            " WHERE appkey = ? AND token = ?",
            (*key, *key),
        ).fetchall()
        new = [
            *((int(address.channel), hash_, address.since_ms, None, device.number) for address, hash_ in addresses),
            *((int(loss.channel), loss.hash, loss.lost_ms, loss.dead_reason, device.number) for loss in dead),
        ]
        if set(rows) == set(new):
            return set()
        before = {channel: hash_ for channel, hash_, _, reason, _ in rows if reason is None}
        after = {channel: (hash_, since_ms) for channel, hash_, since_ms, reason, _ in new if reason is None}
        self._rows.executemany(
            "DELETE FROM addresses WHERE appkey = ? AND token = ? AND channel = ?",
            [
                (*key, channel)
                for channel, hash_ in before.items()
                if channel not in after or after[channel][0] != hash_
            ],
        )
        self._rows.executemany(
            "INSERT INTO addresses VALUES (?, ?, ?, ?, ?, ?, NULL, ?)"
            " ON CONFLICT DO UPDATE SET since_ms = excluded.since_ms, number = excluded.number",
            [(*key, channel, device.partition, *held, device.number) for channel, held in after.items()],
        )
        self._rows.execute("DELETE FROM dead_addresses WHERE appkey = ? AND token = ?", key)
        self._rows.executemany(
            "INSERT INTO dead_addresses VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*key, *each[:4], device.partition, each[4]) for each in new if each[3] is not None],
        )
        return {*before.values(), *(hash_ for hash_, _ in after.values())}

    def erase(self, device: Device) -> set[bytes]:
        """Delete the addresses of the device with the number of a stub; return the hashes of those that it had."""
        key = device.appkey, device.partition, device.number
        rows = self._rows.execute(
            "DELETE FROM addresses WHERE appkey = ? AND partition = ? AND number = ? RETURNING hash", key
        ).fetchall()
        self._rows.execute("DELETE FROM dead_addresses WHERE appkey = ? AND partition = ? AND number = ?", key)
        return {hash_ for (hash_,) in rows}

    def names(self, appkey: str, partition: int, number: int) -> bool:
        """Return whether a row is of the device with the number."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM addresses WHERE appkey = ? AND partition = ? AND number = ?)"
            " OR EXISTS (SELECT 1 FROM dead_addresses WHERE appkey = ? AND partition = ? AND number = ?)"
        )
        return bool(self._rows.execute(query, (appkey, partition, number) * 2).fetchone()[0])

    def mark_surplus(self, appkey: str, hash_: bytes, by: str) -> None:
        """Mark the addresses with the hash as surplus, except the one that was set last; marks that are right already
        stay.

        Of addresses set in the same millisecond the one whose token sorts last counts as the last: an arbitrary rule
        that always gives the same result.
        """
        rows = self._rows.execute(
            "SELECT token, channel, surplus_by FROM addresses INDEXED BY addresses_by_hash"
            " WHERE appkey = ? AND hash = ? ORDER BY since_ms DESC, token DESC",
            (appkey, hash_),
        ).fetchall()
        changed = [
            (by if index else None, appkey, token, channel)
            for index, (token, channel, marked_by) in enumerate(rows)
            if bool(index) != (marked_by is not None)
        ]
        self._rows.executemany(
            "UPDATE addresses SET surplus_by = ? WHERE appkey = ? AND token = ? AND channel = ?", changed
        )

    def surplus(self, appkey: str, hash_: bytes, by: str) -> list[SurplusAddress]:
        """Return the surplus addresses that the record `by` marked."""
        rows = self._rows.execute(
            f"{_SURPLUS} INDEXED BY addresses_by_hash WHERE appkey = ? AND hash = ? AND surplus_by = ?"
            " ORDER BY token, channel",
            (appkey, hash_, by),
        )
        return [SurplusAddress(*row) for row in rows]

    def all_surplus(self) -> list[SurplusAddress]:
        """Return the first surplus addresses, at most as many as a sweep looks at."""
        rows = self._rows.execute(
            f"{_SURPLUS} INDEXED BY addresses_surplus WHERE surplus_by IS NOT NULL"
            " ORDER BY appkey, token, channel LIMIT ?",
            (_SWEPT,),
        )
        return [SurplusAddress(*row) for row in rows]


class AddressRules:
    """Maintains the index of addresses, and commands ClearAddress for the surplus ones.

    The index is a function of the last record of each device, but for the records that the marks name. A repeated
    record changes nothing.
    """

    def __init__(self, table: AddressTable, shard: int, shards: int, is_owner: Callable[[], bool]) -> None:
        self._table = table
        self._shard = shard
        self._shards = shards
        self._is_owner = is_owner
        self._swept: frozenset[tuple[str, str, int, int]] = frozenset()

    def apply(self, record: Record, message: DeviceFact | SessionFact) -> None:
        if isinstance(message, SessionFact):
            return
        match message.WhichOneof("fact"):
            case "device":
                device = message.device
                if not self._table.concerns(device):
                    return
                changed = (
                    self._table.erase(device)
                    if is_erased(device)
                    else self._table.put(device, self._own_addresses(device), self._own_losses(device))
                )
                for hash_ in changed:
                    self._table.mark_surplus(device.appkey, hash_, record_id(record))
            case "revocations" | None:
                pass
            case unexpected:
                assert_never(unexpected)

    def decide(self, record: Record, fact: DeviceFact) -> Sequence[Fact]:
        """Return a ClearAddress for each address that this record made surplus; a standby returns none."""
        if not self._is_owner():
            return ()
        found = [
            self._table.surplus(fact.device.appkey, hash_, record_id(record))
            for _, hash_ in self._own_addresses(fact.device)
        ]
        return [_clear_address(surplus) for some in found for surplus in some]

    def sweep(self) -> Sequence[Fact]:
        """Return a ClearAddress for each address that was surplus at the latest sweep and still is.

        This clears the addresses whose command was never written: a standby read the record that made the address
        surplus, or an instance that started without a state did, and neither decides about records that the log already
        holds.
        """
        found = self._table.all_surplus() if self._is_owner() else []
        overdue = [surplus for surplus in found if surplus.of in self._swept]
        self._swept = frozenset(surplus.of for surplus in found)
        return [_clear_address(surplus) for surplus in overdue]

    def _own_addresses(self, device: Device) -> list[tuple[Address, bytes]]:
        """Return the addresses of the device whose hashes this instance owns, with these."""
        if device.removed_ms:
            return []
        hashed = [(address, address_hash(address.channel, address.address)) for address in device.addresses]
        return [(address, hash_) for address, hash_ in hashed if self._owns(device.appkey, hash_)]

    def _own_losses(self, device: Device) -> list[AddressLost]:
        """Return the dead addresses of the device whose hashes this instance owns."""
        if device.removed_ms:
            return []
        return [loss for loss in device.addresses_lost if loss.dead_reason and self._owns(device.appkey, loss.hash)]

    def _owns(self, appkey: str, hash_: bytes) -> bool:
        return partition_of(device_key(appkey, hash_.hex()), self._shards) == self._shard


def _clear_address(surplus: SurplusAddress) -> Fact:
    """Return the command that takes an address from a device; one that the device has set again since stays."""
    clear = ClearAddress(
        channel=surplus.channel,  # type: ignore[arg-type]
        only_hash=surplus.hash,
        known_before_ms=surplus.since_ms + 1,
        to_token=surplus.keeper,
    )
    command = DeviceCommand(appkey=surplus.appkey, token=surplus.token, clear_address=clear)
    return Fact(DEVICE_COMMANDS, surplus.partition, device_key(surplus.appkey, surplus.token), command)


class AddressSweeper:
    """A service that makes a sweep every SWEEP_MS, as long as the follower of the index runs."""

    name = "registry addresses"

    def __init__(self, follower: Follower, rules: AddressRules, clock: Clock) -> None:
        self._follower = follower
        self._rules = rules
        self._clock = clock
        self._stamp = RecordStamp(follower.name)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + SWEEP_MS)
            await self._follower.write(self._sweep)

    def _sweep(self) -> Sequence[Fact]:
        facts = self._rules.sweep()
        for fact in facts:
            self._stamp.complete(fact.message.meta, self._clock.now_ms())
        return facts
