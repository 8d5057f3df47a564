"""The tables of the registry's two SQLite files: the devices, and the alias index.

Both are made for 10 million devices. A device takes about 300 bytes in the first file, with its activity; in the
second 40 once it has been active, and 60 more with an alias.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from protos.gateway.v1.sessions_pb2 import AttributeChange, SessionEvent
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, Revocations
from protos.registry.v1.devices_pb2 import Device
from services.domain.recorded_reasons import FixedReason, KeyRevoked, parsed_reason
from services.domain.revocations import NONE_REVOKED, RevokedKeys
from services.errors import CarillonError
from services.replica.sqlite_store import SqliteStore

_DAY_MS = 86_400_000

DEVICES_FILE = "devices.sqlite"
DEVICES_DDL = """
CREATE TABLE devices (
  appkey TEXT NOT NULL, token TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL,
  removed_ms INTEGER NOT NULL, invalid INTEGER NOT NULL, record BLOB NOT NULL, names_others INTEGER NOT NULL,
  UNIQUE (appkey, token), UNIQUE (appkey, partition, number));
CREATE INDEX devices_invalid ON devices (appkey, removed_ms DESC, token) WHERE invalid = 1;
CREATE INDEX devices_naming_others ON devices (appkey) WHERE names_others = 1;
CREATE TABLE activity (
  appkey TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL, active_ms INTEGER NOT NULL,
  PRIMARY KEY (appkey, partition, number)) WITHOUT ROWID;
CREATE TABLE device_counts (appkey TEXT NOT NULL PRIMARY KEY, registered INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER device_added AFTER INSERT ON devices WHEN new.removed_ms = 0 BEGIN
  INSERT INTO device_counts VALUES (new.appkey, 1) ON CONFLICT DO UPDATE SET registered = registered + 1;
END;
CREATE TRIGGER device_returned AFTER UPDATE ON devices WHEN old.removed_ms <> 0 AND new.removed_ms = 0 BEGIN
  INSERT INTO device_counts VALUES (new.appkey, 1) ON CONFLICT DO UPDATE SET registered = registered + 1;
END;
CREATE TRIGGER device_removed AFTER UPDATE ON devices WHEN old.removed_ms = 0 AND new.removed_ms <> 0 BEGIN
  UPDATE device_counts SET registered = registered - 1 WHERE appkey = new.appkey;
  DELETE FROM device_counts WHERE appkey = new.appkey AND registered = 0;
END;
CREATE TABLE silent (
  appkey TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL, removed_ms INTEGER NOT NULL,
  since_ms INTEGER NOT NULL, shows_life INTEGER NOT NULL, PRIMARY KEY (appkey, partition, number)) WITHOUT ROWID;
CREATE INDEX silent_by_time ON silent (appkey, removed_ms);
CREATE INDEX silent_returning ON silent (appkey, partition, number) WHERE shows_life = 1;
CREATE TABLE revocations (
  appkey TEXT NOT NULL, partition INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (appkey, partition));
CREATE TABLE unseen_changes (
  partition INTEGER NOT NULL, revision INTEGER NOT NULL, change BLOB NOT NULL,
  PRIMARY KEY (partition, revision)) WITHOUT ROWID;
CREATE TABLE seen_changes (partition INTEGER NOT NULL PRIMARY KEY, revision INTEGER NOT NULL);
"""

ALIASES_FILE = "aliases.sqlite"
ALIASES_DDL = """
CREATE TABLE members (
  appkey TEXT NOT NULL, partition INTEGER NOT NULL, number INTEGER NOT NULL, used_ms INTEGER NOT NULL,
  alias TEXT, token TEXT, since_ms INTEGER NOT NULL, dropped_by TEXT, dropped_ms INTEGER,
  proven INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (appkey, partition, number)) WITHOUT ROWID;
CREATE INDEX members_by_alias ON members (appkey, alias) WHERE alias IS NOT NULL;
"""


def is_erased(device: Device) -> bool:
    """Return whether the record is the stub of an erased device."""
    return bool(device.removed_ms) and device.removed_reason == FixedReason.ERASED


class TakenNumberError(CarillonError, ValueError):
    """A device record has the number of another device of its app and partition; the record is left out."""


class SilentDevice(NamedTuple):
    """A device that was removed for its silence, by appkey, partition and number, and its latest activity."""

    key: tuple[str, int, int]
    active_ms: int


class DeviceRows(NamedTuple):
    """A page of registered devices.

    `counts`: the appkey and latest activity of each. `quiet`: the devices without recent activity, each with the time
    of its latest. `end`: where the next page begins; if this page is empty, where this page began.
    """

    counts: Sequence[tuple[str, int]]
    quiet: Sequence[tuple[Device, int]]
    end: int


class ChangeTable:
    """Changes of attributes that device records of the log have made and that were not read in `sessions` yet."""

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows

    def note(self, partition: int, revision: int, change: AttributeChange) -> bool:
        """Store a change; return False, and store nothing, if this change or a later one of the partition was already
        read in `sessions`.
        """
        row = self._rows.execute("SELECT revision FROM seen_changes WHERE partition = ?", (partition,)).fetchone()
        if row and row[0] >= revision:
            return False
        blob = change.SerializeToString(deterministic=True)
        self._rows.execute("INSERT OR REPLACE INTO unseen_changes VALUES (?, ?, ?)", (partition, revision, blob))
        return True

    def seen(self, partition: int, revision: int) -> None:
        """Note that a change was read, and forget it and all earlier ones of the partition."""
        self._rows.execute(
            "INSERT INTO seen_changes VALUES (?, ?)"
            " ON CONFLICT DO UPDATE SET revision = max(revision, excluded.revision)",
            (partition, revision),
        )
        self._rows.execute("DELETE FROM unseen_changes WHERE partition = ? AND revision <= ?", (partition, revision))

    def unseen(self, partition: int) -> list[AttributeChange]:
        """Return the stored changes of a partition, in their order."""
        query = "SELECT change FROM unseen_changes WHERE partition = ? ORDER BY revision"
        return [AttributeChange.FromString(change) for (change,) in self._rows.execute(query, (partition,))]

    def partitions(self) -> set[int]:
        """Return the partitions with stored changes."""
        return {partition for (partition,) in self._rows.execute("SELECT DISTINCT partition FROM unseen_changes")}


class DeviceTable:
    """Devices by token, the device numbers assigned in each (appkey, partition), and the revoked ones among them.

    A device's row is never deleted, so no number is assigned twice, also when a device gets a new number.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows
        self.changes = ChangeTable(store)

    def find(self, appkey: str, token: str) -> Device | None:
        """Return the device, also if it is removed."""
        row = self._rows.execute(
            "SELECT record FROM devices WHERE appkey = ? AND token = ?", (appkey, token)
        ).fetchone()
        return Device.FromString(row[0]) if row else None

    def next_number(self, appkey: str, partition: int) -> int:
        """Return the number after those of all devices."""
        query = "SELECT max(number) + 1 FROM devices WHERE appkey = ? AND partition = ?"
        return int(self._rows.execute(query, (appkey, partition)).fetchone()[0] or 0)

    def put(self, device: Device) -> bool:
        """Insert or replace the device's record; return whether it was removed for a silence that has ended already.

        TakenNumberError: its number belongs to another device.
        """
        self._put_record(device)
        key = device.appkey, device.partition, device.number
        self._rows.executemany(
            "DELETE FROM silent WHERE appkey = ? AND partition = ? AND number = ?",
            [(device.appkey, device.partition, number) for number in (device.number, *device.former_numbers)],
        )
        if not device.removed_ms or device.removed_reason != FixedReason.SILENT:
            return False
        query = "SELECT active_ms FROM activity WHERE appkey = ? AND partition = ? AND number = ?"
        row = self._rows.execute(query, key).fetchone()
        shows_life = row is not None and row[0] > device.silent_since_ms
        self._rows.execute(
            "INSERT INTO silent VALUES (?, ?, ?, ?, ?, ?)",
            (*key, device.removed_ms, device.silent_since_ms, shows_life),
        )
        return shows_life

    def _put_record(self, device: Device) -> None:
        try:
            if is_erased(device):
                self._rows.execute(
                    "UPDATE devices SET token = ? WHERE appkey = ? AND partition = ? AND number = ?",
                    (device.token, device.appkey, device.partition, device.number),
                )
            self._rows.execute(
                "INSERT INTO devices VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (appkey, token) DO UPDATE SET"
                " partition = excluded.partition, number = excluded.number, removed_ms = excluded.removed_ms,"
                " invalid = excluded.invalid, record = excluded.record, names_others = excluded.names_others",
                (
                    device.appkey,
                    device.token,
                    device.partition,
                    device.number,
                    device.removed_ms,
                    _is_invalid(device),
                    device.SerializeToString(deterministic=True),
                    bool(_losses(device)),
                ),
            )
        except sqlite3.IntegrityError:
            raise TakenNumberError(
                f"two devices of app {device.appkey} have number {device.number} in partition {device.partition}:"
                " two registries wrote to it, so check that each has its own CARILLON_SHARD; or the record is forged"
            ) from None

    def forget(self, appkey: str, until_ms: int, left: Callable[[Device], Device | None]) -> None:
        """Replace the devices of an app that name other devices in their losses up to a time by what `left` returns.

        None: the device stays as it is.
        """
        rows = self._rows.execute(
            "SELECT record FROM devices INDEXED BY devices_naming_others WHERE appkey = ? AND names_others = 1",
            (appkey,),
        ).fetchall()
        for (record,) in rows:
            device = Device.FromString(record)
            if max(_losses(device), default=0) <= until_ms and (changed := left(device)) is not None:
                self._put_record(changed)

    def revoke(self, revocations: Revocations) -> None:
        """Insert or replace the partition's revocation record. ValueError: its numbers are no bitmap."""
        RevokedKeys.of(revocations)
        self._rows.execute(
            "INSERT INTO revocations VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET record = excluded.record",
            (revocations.appkey, revocations.partition, revocations.SerializeToString(deterministic=True)),
        )

    def revoked(self, appkey: str, partition: int) -> RevokedKeys:
        """Return the numbers whose keys are revoked."""
        record = self.revocations_of(appkey, partition)
        return RevokedKeys.of(record) if record else NONE_REVOKED

    def revocations_of(self, appkey: str, partition: int) -> Revocations | None:
        """Return the revocation record of the app and partition."""
        query = "SELECT record FROM revocations WHERE appkey = ? AND partition = ?"
        row = self._rows.execute(query, (appkey, partition)).fetchone()
        return Revocations.FromString(row[0]) if row else None

    def revocations(self) -> list[Revocations]:
        """Return every revocation record, by app and partition."""
        rows = self._rows.execute("SELECT record FROM revocations ORDER BY appkey, partition")
        return [Revocations.FromString(record) for (record,) in rows]

    def after(self, key: tuple[str, int, int] | None, limit: int) -> list[Device]:
        """Return the next devices by appkey, partition and number, also removed ones."""
        rows = self._rows.execute(
            "SELECT record FROM devices WHERE (appkey, partition, number) > (?, ?, ?)"
            " ORDER BY appkey, partition, number LIMIT ?",
            (*(key or ("", -1, -1)), limit),
        )
        return [Device.FromString(record) for (record,) in rows]

    def registered(self, appkey: str, partition: int, first: int, last: int, limit: int) -> list[Device]:
        """Return at most `limit` devices with numbers from `first` to `last` that are not removed, by number."""
        rows = self._rows.execute(
            "SELECT record FROM devices WHERE appkey = ? AND partition = ? AND number BETWEEN ? AND ?"
            " AND removed_ms = 0 ORDER BY number LIMIT ?",
            (appkey, partition, first, last, limit),
        )
        return [Device.FromString(record) for (record,) in rows]

    def note_activity(self, partition: int, events: Sequence[SessionEvent]) -> bool:
        """Store the time of each number's latest activity; times may come in any order, also before the device.

        A stored time more than a day after the event's was a wrong clock's, and is replaced. Return whether a device
        that was removed for its silence has shown life.
        """
        self._rows.executemany(
            "INSERT INTO activity VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET active_ms = excluded.active_ms"
            " WHERE active_ms NOT BETWEEN excluded.active_ms AND excluded.active_ms + ?",
            _activity_rows(partition, events),
        )
        if not self._rows.execute("SELECT EXISTS (SELECT 1 FROM silent)").fetchone()[0]:
            return False
        found = self._rows.executemany(
            "UPDATE silent SET shows_life = 1 WHERE appkey = ? AND partition = ? AND number = ? AND since_ms < ?",
            [(event.appkey, partition, event.number, event.time_ms) for event in events],
        )
        return found.rowcount > 0

    def has_silent(self, appkey: str, partition: int) -> bool:
        """Return whether a device of the app and partition was removed for its silence."""
        query = "SELECT EXISTS (SELECT 1 FROM silent WHERE appkey = ? AND partition = ?)"
        return bool(self._rows.execute(query, (appkey, partition)).fetchone()[0])

    def page(self, after: int, limit: int, before_ms: int) -> DeviceRows:
        """Return the next registered devices; `quiet` are those with no activity since `before_ms`."""
        rows = self._rows.execute(
            "SELECT devices.rowid, appkey, ifnull(active_ms, 0), iif(ifnull(active_ms, 0) < ?, record, NULL)"
            " FROM devices LEFT JOIN activity USING (appkey, partition, number)"
            " WHERE devices.rowid > ? AND removed_ms = 0 ORDER BY devices.rowid LIMIT ?",
            (before_ms, after, limit),
        ).fetchall()
        quiet = [(Device.FromString(record), active_ms) for _, _, active_ms, record in rows if record is not None]
        counts = [(appkey, active_ms) for _, appkey, active_ms, _ in rows]
        return DeviceRows(counts, quiet, rows[-1][0] if rows else after)

    def retirements(self, appkey: str, since_ms: int) -> tuple[int, int]:
        """Return how many devices of the app are registered, and how many were removed for their silence since then."""
        query = (
            "SELECT ifnull((SELECT registered FROM device_counts WHERE appkey = ?), 0),"
            " (SELECT count(*) FROM silent WHERE appkey = ? AND removed_ms > ?)"
        )
        registered, retired = self._rows.execute(query, (appkey, appkey, since_ms)).fetchone()
        return int(registered), int(retired)

    def returning(self, after: tuple[str, int, int] | None, limit: int) -> list[SilentDevice]:
        """Return the next devices that were removed for their silence and have been active since, by key."""
        rows = self._rows.execute(
            "SELECT appkey, partition, number, max(active_ms, since_ms) FROM silent INDEXED BY silent_returning"
            " JOIN activity USING (appkey, partition, number)"
            " WHERE shows_life = 1 AND (appkey, partition, number) > (?, ?, ?) ORDER BY appkey, partition, number"
            " LIMIT ?",
            (*(after or ("", -1, -1)), limit),
        )
        return [SilentDevice((appkey, partition, number), active_ms) for appkey, partition, number, active_ms in rows]

    def by_number(self, appkey: str, partition: int, number: int) -> Device | None:
        """Return the device with the number, also if it is removed."""
        query = "SELECT record FROM devices WHERE appkey = ? AND partition = ? AND number = ?"
        row = self._rows.execute(query, (appkey, partition, number)).fetchone()
        return Device.FromString(row[0]) if row else None


def _activity_rows(partition: int, events: Iterable[SessionEvent]) -> list[tuple[str, int, int, int, int]]:
    return [(event.appkey, partition, event.number, event.time_ms, _DAY_MS) for event in events]


def _losses(device: Device) -> list[int]:
    """Return when the device lost an alias or an address to another device."""
    alias = [device.alias_lost.lost_ms] if device.HasField("alias_lost") else []
    return [*alias, *(lost.lost_ms for lost in device.addresses_lost if lost.to_token)]


def _is_invalid(device: Device) -> bool:
    """Return whether Apple rejected the token, and not the app or a revocation removed the device."""
    if not device.removed_ms or device.platform != PLATFORM_IOS:
        return False
    reason = parsed_reason(device.removed_reason)
    own = (FixedReason.UNREGISTERED, FixedReason.SILENT, FixedReason.ERASED)
    return reason not in own and not isinstance(reason, KeyRevoked)


class DroppedDevice(NamedTuple):
    """A device that is marked as dropped from its alias, and the record that marked it."""

    partition: int
    number: int
    token: str
    is_proven: bool
    dropped_by: str


class HeldAlias(NamedTuple):
    """A device's alias, and whether the device has proven it."""

    alias: str
    is_proven: bool


class AliasTable:
    """The alias and the latest activity of each device. Aliases that other instances own are not stored.

    Queries of one alias name their index: left to itself, SQLite reads all of the app's devices by their primary key.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows

    def alias_of(self, appkey: str, partition: int, number: int) -> HeldAlias | None:
        row = self._rows.execute(
            "SELECT alias, proven FROM members WHERE appkey = ? AND partition = ? AND number = ?",
            (appkey, partition, number),
        ).fetchone()
        return HeldAlias(row[0], bool(row[1])) if row and row[0] is not None else None

    def set_alias(self, device: Device) -> None:
        """Store the device's alias. If it is unchanged, a mark as dropped stays, unless the alias is now proven."""
        since_ms = max(device.registered_ms, device.alias_set_ms)
        self._rows.execute(
            "INSERT INTO members VALUES (?, ?, ?, 0, ?, ?, ?, NULL, NULL, ?) ON CONFLICT DO UPDATE SET"
            " alias = excluded.alias, token = excluded.token, since_ms = excluded.since_ms, proven = excluded.proven,"
            " dropped_by = iif(alias IS excluded.alias AND proven >= excluded.proven, dropped_by, NULL),"
            " dropped_ms = iif(alias IS excluded.alias AND proven >= excluded.proven, dropped_ms, NULL)",
            (
                device.appkey,
                device.partition,
                device.number,
                device.alias,
                device.token,
                since_ms,
                int(device.alias_proven),
            ),
        )

    def clear_alias(self, device: Device) -> None:
        """Remove the device's alias; its latest activity stays."""
        where = (device.appkey, device.partition, device.number)
        self._rows.execute(
            "UPDATE members SET alias = NULL, token = NULL, since_ms = 0, dropped_by = NULL, dropped_ms = NULL,"
            " proven = 0 WHERE appkey = ? AND partition = ? AND number = ?",
            where,
        )
        self._rows.execute(
            "DELETE FROM members WHERE appkey = ? AND partition = ? AND number = ? AND used_ms = 0", where
        )

    def names(self, appkey: str, partition: int, number: int) -> bool:
        """Return whether the row of the device has an alias or a token."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM members WHERE appkey = ? AND partition = ? AND number = ?"
            " AND (alias IS NOT NULL OR token IS NOT NULL))"
        )
        return bool(self._rows.execute(query, (appkey, partition, number)).fetchone()[0])

    def note_activity(self, partition: int, events: Iterable[SessionEvent]) -> None:
        """Store the time of each device's latest activity, also of a device whose record was not read yet.

        An earlier time changes nothing, unless the stored one is more than a day ahead of it: that is taken for the
        time of a wrong clock, and replaced.
        """
        self._rows.executemany(
            "INSERT INTO members VALUES (?, ?, ?, ?, NULL, NULL, 0, NULL, NULL, 0) ON CONFLICT DO UPDATE SET"
            " used_ms = excluded.used_ms WHERE used_ms NOT BETWEEN excluded.used_ms AND excluded.used_ms + ?",
            _activity_rows(partition, events),
        )

    def counts(self, appkey: str, alias: str) -> tuple[int, int]:
        """Return how many devices have the alias, and how many of them are marked as dropped."""
        count, dropped = self._rows.execute(
            "SELECT count(*), count(dropped_by) FROM members INDEXED BY members_by_alias"
            " WHERE appkey = ? AND alias = ?",
            (appkey, alias),
        ).fetchone()
        return int(count), int(dropped)

    def drop_surplus(self, device: Device, count: int, by: str, time_ms: int) -> None:
        """Mark `count` devices of this device's alias as dropped.

        Devices that have not proven the alias come first, then the least recently active; this device is the last of
        those equally proven. So it displaces no device that has proven the alias, unless it has done so itself.
        """
        rows = self._rows.execute(
            "SELECT partition, number FROM members INDEXED BY members_by_alias"
            " WHERE appkey = ? AND alias = ? AND dropped_by IS NULL"
            " ORDER BY proven, (partition, number) = (?, ?), max(used_ms, since_ms), partition, number LIMIT ?",
            (device.appkey, device.alias, device.partition, device.number, count),
        ).fetchall()
        self._mark(device.appkey, rows, by, time_ms)

    def restore_most_active(self, appkey: str, alias: str, count: int) -> None:
        """Unmark `count` dropped devices: those that have proven the alias first, then the most recently active."""
        rows = self._rows.execute(
            "SELECT partition, number FROM members INDEXED BY members_by_alias"
            " WHERE appkey = ? AND alias = ? AND dropped_by IS NOT NULL"
            " ORDER BY proven DESC, max(used_ms, since_ms) DESC, partition, number LIMIT ?",
            (appkey, alias, count),
        ).fetchall()
        self._mark(appkey, rows, None, None)

    def dropped(self, appkey: str, alias: str, by: str, overdue_ms: int) -> list[DroppedDevice]:
        """Return the devices that the record `by` marked as dropped, or that were marked at `overdue_ms` or before."""
        rows = self._rows.execute(
            "SELECT partition, number, token, proven, dropped_by FROM members INDEXED BY members_by_alias"
            " WHERE appkey = ? AND alias = ? AND (dropped_by = ? OR dropped_ms <= ?) ORDER BY partition, number",
            (appkey, alias, by, overdue_ms),
        )
        return [
            DroppedDevice(partition, number, token, bool(proven), dropped_by)
            for partition, number, token, proven, dropped_by in rows
        ]

    def _mark(self, appkey: str, devices: Iterable[tuple[int, int]], by: str | None, time_ms: int | None) -> None:
        self._rows.executemany(
            "UPDATE members SET dropped_by = ?, dropped_ms = ? WHERE appkey = ? AND partition = ? AND number = ?",
            [(by, time_ms, appkey, partition, number) for partition, number in devices],
        )
