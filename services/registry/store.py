"""The registry's state on disk: one SQLite file for the devices, one for the alias index.

Both are sized for 10 million devices: about 300 bytes each in the first, about 40 in the second for a device that has
been active, and 60 more with an alias.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, Revocations
from protos.registry.v1.devices_pb2 import Device
from services.domain.revocations import NONE_REVOKED, REVOKED, RevokedKeys
from services.runtime.errors import CarillonError
from services.runtime.projection.store import SqliteStore

UNREGISTERED = "unregistered"
"""Why a device was removed that its app or its app server took back."""

DEVICES_FILE = "devices.sqlite"
DEVICES_DDL = """
CREATE TABLE devices (
  appkey TEXT NOT NULL, token TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL,
  removed_ms INTEGER NOT NULL, invalid INTEGER NOT NULL, active_ms INTEGER NOT NULL, record BLOB NOT NULL,
  UNIQUE (appkey, token), UNIQUE (appkey, partition, number));
CREATE INDEX devices_invalid ON devices (appkey, removed_ms DESC, token) WHERE invalid = 1;
CREATE TABLE revocations (
  appkey TEXT NOT NULL, partition INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (appkey, partition));
"""

ALIASES_FILE = "aliases.sqlite"
ALIASES_DDL = """
CREATE TABLE members (
  appkey TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL, seen_ms INTEGER NOT NULL,
  alias TEXT, token TEXT, since_ms INTEGER NOT NULL, dropped_by TEXT, dropped_ms INTEGER,
  PRIMARY KEY (appkey, partition, number)) WITHOUT ROWID;
CREATE INDEX members_by_alias ON members (appkey, alias) WHERE alias IS NOT NULL;
"""


class DeviceTable:
    """Devices by token, how many numbers each (appkey, partition) has given out, and which of them are revoked.

    A device's row stays for ever, and where it gets another number, that is a new one: no number is given out twice.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows

    def find(self, appkey: str, token: str) -> Device | None:
        """The device, a removed one too."""
        row = self._rows.execute(
            "SELECT record FROM devices WHERE appkey = ? AND token = ?", (appkey, token)
        ).fetchone()
        return Device.FromString(row[0]) if row else None

    def next_number(self, appkey: str, partition: int) -> int:
        query = "SELECT max(number) + 1 FROM devices WHERE appkey = ? AND partition = ?"
        return int(self._rows.execute(query, (appkey, partition)).fetchone()[0] or 0)

    def put(self, device: Device) -> None:
        """Write the record over the one known. CarillonError: its number belongs to another device."""
        try:
            self._rows.execute(
                "INSERT INTO devices VALUES (?, ?, ?, ?, ?, ?, 0, ?) ON CONFLICT (appkey, token) DO UPDATE SET"
                " active_ms = iif(number = excluded.number, active_ms, 0),"
                " partition = excluded.partition, number = excluded.number, removed_ms = excluded.removed_ms,"
                " invalid = excluded.invalid, record = excluded.record",
                (
                    device.appkey,
                    device.token,
                    device.partition,
                    device.number,
                    device.removed_ms,
                    _is_invalid(device),
                    device.SerializeToString(deterministic=True),
                ),
            )
        except sqlite3.IntegrityError:
            raise CarillonError(
                f"two devices of app {device.appkey} have number {device.number} in partition {device.partition}:"
                " two registries wrote to it; see that each has its own CARILLON_SHARD"
            ) from None

    def revoke(self, revocations: Revocations) -> None:
        """Write the record over the one known. ValueError: its numbers are no bitmap."""
        RevokedKeys.of(revocations)
        self._rows.execute(
            "INSERT INTO revocations VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET record = excluded.record",
            (revocations.appkey, revocations.partition, revocations.SerializeToString(deterministic=True)),
        )

    def revoked(self, appkey: str, partition: int) -> RevokedKeys:
        """The numbers whose keys are refused."""
        query = "SELECT record FROM revocations WHERE appkey = ? AND partition = ?"
        row = self._rows.execute(query, (appkey, partition)).fetchone()
        return RevokedKeys.of(Revocations.FromString(row[0])) if row else NONE_REVOKED

    def revocations(self) -> list[Revocations]:
        """The record of each app and partition that has one."""
        rows = self._rows.execute("SELECT record FROM revocations ORDER BY appkey, partition")
        return [Revocations.FromString(record) for (record,) in rows]

    def registered(self, appkey: str, partition: int, first: int, last: int, limit: int) -> list[Device]:
        """The devices with numbers from `first` to `last` that are not removed, at most `limit`, by number."""
        rows = self._rows.execute(
            "SELECT record FROM devices WHERE appkey = ? AND partition = ? AND number BETWEEN ? AND ?"
            " AND removed_ms = 0 ORDER BY number LIMIT ?",
            (appkey, partition, first, last, limit),
        )
        return [Device.FromString(record) for (record,) in rows]

    def touch(self, appkey: str, partition: int, number: int, moment_ms: int) -> None:
        """Note a sign of life; moments may come in any order."""
        self._rows.execute(
            "UPDATE devices SET active_ms = ?4 WHERE appkey = ?1 AND partition = ?2 AND number = ?3 AND active_ms < ?4",
            (appkey, partition, number, moment_ms),
        )


def _is_invalid(device: Device) -> bool:
    """Whether Apple said that the token is of no use any more; who unregisters says so by itself."""
    by_us = device.removed_reason == UNREGISTERED or device.removed_reason.startswith(REVOKED)
    return bool(device.removed_ms) and device.platform == PLATFORM_IOS and not by_us


class Member(NamedTuple):
    """A device that has an alias."""

    partition: int
    number: int
    token: str


class AliasTable:
    """Which devices have which alias, and when each device was last seen. Aliases of other instances are left out."""

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows

    def alias_of(self, appkey: str, partition: int, number: int) -> str | None:
        row = self._rows.execute(
            "SELECT alias FROM members WHERE appkey = ? AND partition = ? AND number = ?", (appkey, partition, number)
        ).fetchone()
        return row[0] if row else None

    def join(self, device: Device) -> None:
        """The device has its alias; one that had it already is not changed but for its moments."""
        since_ms = max(device.registered_ms, device.alias_set_ms)
        self._rows.execute(
            "INSERT INTO members VALUES (?, ?, ?, 0, ?, ?, ?, NULL, NULL) ON CONFLICT DO UPDATE SET"
            " alias = excluded.alias, token = excluded.token, since_ms = excluded.since_ms,"
            " dropped_by = iif(alias IS excluded.alias, dropped_by, NULL),"
            " dropped_ms = iif(alias IS excluded.alias, dropped_ms, NULL)",
            (device.appkey, device.partition, device.number, device.alias, device.token, since_ms),
        )

    def leave(self, device: Device) -> None:
        """The device has no alias that is kept here; whether it was seen stays known."""
        where = (device.appkey, device.partition, device.number)
        self._rows.execute(
            "UPDATE members SET alias = NULL, token = NULL, since_ms = 0, dropped_by = NULL, dropped_ms = NULL"
            " WHERE appkey = ? AND partition = ? AND number = ?",
            where,
        )
        self._rows.execute(
            "DELETE FROM members WHERE appkey = ? AND partition = ? AND number = ? AND seen_ms = 0", where
        )

    def touch(self, appkey: str, partition: int, number: int, moment_ms: int) -> None:
        """Note a sign of life; moments may come in any order, and before the device is known."""
        self._rows.execute(
            "INSERT INTO members VALUES (?, ?, ?, ?, NULL, NULL, 0, NULL, NULL) ON CONFLICT DO UPDATE SET"
            " seen_ms = excluded.seen_ms WHERE excluded.seen_ms > seen_ms",
            (appkey, partition, number, moment_ms),
        )

    def counts(self, appkey: str, alias: str) -> tuple[int, int]:
        """How many devices have the alias, and how many of them are dropped."""
        count, dropped = self._rows.execute(
            "SELECT count(*), count(dropped_by) FROM members WHERE appkey = ? AND alias = ?", (appkey, alias)
        ).fetchone()
        return int(count), int(dropped)

    def drop_least_active(self, device: Device, count: int, by: str, moment_ms: int) -> None:
        """Mark `count` devices of this device's alias as dropped, the least recently active ones but itself."""
        rows = self._rows.execute(
            "SELECT partition, number FROM members WHERE appkey = ? AND alias = ? AND dropped_by IS NULL"
            " AND (partition, number) <> (?, ?) ORDER BY max(seen_ms, since_ms), partition, number LIMIT ?",
            (device.appkey, device.alias, device.partition, device.number, count),
        ).fetchall()
        self._mark(device.appkey, rows, by, moment_ms)

    def restore_most_active(self, appkey: str, alias: str, count: int) -> None:
        """Take the mark from `count` dropped devices, the most recently active ones."""
        rows = self._rows.execute(
            "SELECT partition, number FROM members WHERE appkey = ? AND alias = ? AND dropped_by IS NOT NULL"
            " ORDER BY max(seen_ms, since_ms) DESC, partition, number LIMIT ?",
            (appkey, alias, count),
        ).fetchall()
        self._mark(appkey, rows, None, None)

    def dropped(self, appkey: str, alias: str, by: str, overdue_ms: int) -> list[Member]:
        """The devices whose mark was set by the record `by`, or is as old as `overdue_ms`."""
        rows = self._rows.execute(
            "SELECT partition, number, token FROM members WHERE appkey = ? AND alias = ?"
            " AND (dropped_by = ? OR dropped_ms <= ?) ORDER BY partition, number",
            (appkey, alias, by, overdue_ms),
        )
        return [Member(*row) for row in rows]

    def _mark(self, appkey: str, devices: Iterable[tuple[int, int]], by: str | None, moment_ms: int | None) -> None:
        self._rows.executemany(
            "UPDATE members SET dropped_by = ?, dropped_ms = ? WHERE appkey = ? AND partition = ? AND number = ?",
            [(by, moment_ms, appkey, partition, number) for partition, number in devices],
        )
