"""Forgets persons in the analytics store: a few statements empty what is about all persons of a batch.

The tables hold clear values, the log sealed ones. A store that is filled from the log after an erasure has names in
place of tokens and aliases, and no texts. So what `forget` leaves in a store does not depend on when it was filled. The
numbers, times and attributes that statistics count by stay as they are.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analytics.ingestion.tables.devices import DEVICE_COMMANDS_TABLE
from analytics.store.clickhouse import ClickHouse
from protos.registry.v1.erasures_pb2 import PersonErased
from services.domain.sealing import FEW_DEVICES
from services.errors import UnavailableError
from services.process.metrics import ERASURE_STATEMENTS

BATCH = 50
"""Persons that one statement forgets at most: ClickHouse takes statements of up to 256 KiB."""

_POLL_S = 0.1
_NEVER_MS = 4_000_000_000_000
"""A time in milliseconds since 1970 UTC that no erasure has; ClickHouse takes no much greater one."""


class Erasure(NamedTuple):
    """A person who is erased since `time_ms`."""

    person: PersonErased
    time_ms: int


async def forget(clickhouse: ClickHouse, erasures: Sequence[Erasure]) -> int:
    """Forget the persons; return the number of statements that changed a table. What is forgotten already costs none.

    It may be interrupted anywhere, and called again. UnavailableError: the store did not carry out a statement.
    """
    count = 0
    for first in range(0, len(erasures), BATCH):
        count += await _Batch(clickhouse, erasures[first : first + BATCH]).forget()
    return count


# A device as one number, the partition in its upper bits; with its app, one text.

_DEVICE = "bitShiftLeft(toUInt64({partition}), 32) + {number}"
_OF_ROW = _DEVICE.format(partition="partition", number="number")
_LISTED = _DEVICE.format(partition="p", number="n")
_IS_STUB = "match(token, '^~[a-z2-7]{26}')"
_IS_WHOLE_STUB = "match(token, '^~[a-z2-7]{26}/')"
"""The latest record of a device has a number behind the name; earlier ones, which open no more, have the name alone."""


_CLEAR = f"""
SELECT DISTINCT appkey, token, transform(concat(appkey, '/', toString(device)), {{keys}}, {{names}}, '') FROM (
  SELECT appkey, token, {_OF_ROW} AS device FROM devices WHERE appkey IN {{apps}} AND partition IN {{partitions}}
  UNION ALL
  SELECT appkey, token, {_OF_ROW} AS device FROM registrations WHERE appkey IN {{apps}}
  UNION ALL
  SELECT appkey, token, device FROM device_tokens WHERE appkey IN {{apps}} AND device IN {{devices}})
WHERE concat(appkey, '/', toString(device)) IN {{keys}} AND token != '' AND NOT {_IS_STUB}
"""  # noqa: S608
_ALIASES = f"""
SELECT DISTINCT appkey, alias FROM (
  SELECT appkey, alias FROM devices WHERE appkey IN {{apps}} AND concat(appkey, '/', toString({_OF_ROW})) IN {{keys}}
    AND NOT {_IS_STUB}
  ORDER BY _offset DESC LIMIT 1 BY appkey, partition, number)
WHERE alias != ''
"""  # noqa: S608
_ERASED_MS = (
    "if(empty(target_numbers), {never}, arrayMin(arrayMap((p, n) -> transform(concat(appkey, '/',"
    f" toString({_LISTED})), {{keys}}, {{times}}, {{never}}), target_partitions, target_numbers)))"
)
_ERASED_PUSHES = "FROM pushes WHERE appkey IN {apps} AND toUnixTimestamp64Milli(erased) > 0"


class _Batch:
    """The persons whom one run of the statements forgets."""

    def __init__(self, clickhouse: ClickHouse, erasures: Iterable[Erasure]) -> None:
        self._clickhouse = clickhouse
        self._stub_of: dict[tuple[str, int], str] = {}
        self._name_of: dict[tuple[str, int], str] = {}
        self._time_ms: dict[tuple[str, int], int] = {}
        self._until_ms: dict[tuple[str, str], int] = {}
        for person, time_ms in erasures:
            for device in person.devices:
                self._until_ms[person.appkey, device.token_name] = time_ms
                for number in (device.number, *device.former_numbers):
                    key = person.appkey, (device.partition << 32) + number
                    self._stub_of[key] = f"{device.token_name}/{device.number}"
                    self._name_of[key] = device.token_name
                    self._time_ms[key] = time_ms
        self._aliases_of = {(person.appkey, name) for person, _ in erasures for name in person.alias_names}
        keys = [f"{appkey}/{device}" for appkey, device in self._stub_of]
        self._texts = {
            "keys": _texts(keys),
            "stubs": _texts(self._stub_of.values()),
            "names": _texts(self._name_of.values()),
            "times": _numbers(self._time_ms.values()),
            "apps": _texts(sorted({appkey for appkey, _ in self._stub_of})),
            "devices": _numbers(sorted({device for _, device in self._stub_of})),
            "partitions": _numbers(sorted({device >> 32 for _, device in self._stub_of})),
            "never": str(_NEVER_MS),
            "few": str(FEW_DEVICES),
        }

    async def forget(self) -> int:
        """Empty the tables; those by which tokens are found come last. Return how many statements that took."""
        if not self._stub_of:
            return 0
        clear = {(appkey, token): name for appkey, token, name in await self._rows(_CLEAR)}
        aliases = {(appkey, alias) for appkey, alias in await self._rows(_ALIASES)} if self._aliases_of else set()
        done = [
            await self._forget_commands(clear),
            await self._forget_actions(clear, aliases),
            *await self._forget_pushes(),
            *await self._forget_tasks(clear, aliases),
            await self._forget_tokens("registrations", _OF_ROW),
            await self._forget_tokens("device_tokens", "device"),
            await self._forget_devices(),
        ]
        return sum(done)

    async def _forget_commands(self, clear: Mapping[tuple[str, str], str]) -> bool:
        """Store the commands of the tokens under their names, then delete those that are under both.

        A column of the table's key cannot be changed.
        """
        changes = {"detail": "''", "details": "''", "address": "''"}
        columns = DEVICE_COMMANDS_TABLE.schema.names
        deleted = False
        if clear:
            of_tokens = (
                "appkey IN {apps} AND token IN {tokens} AND toUnixTimestamp64Milli(time) <="
                " transform(concat(appkey, '/', token), {tokens_of_apps}, {until}, 0)"
            )
            values = {
                "tokens": _texts({token for _, token in clear}),
                "tokens_of_apps": _texts(f"{appkey}/{token}" for appkey, token in clear),
                "names_of_tokens": _texts(clear.values()),
                "until": _numbers(self._until_ms[appkey, name] for (appkey, _), name in clear.items()),
            }
            named = "transform(concat(appkey, '/', token), {tokens_of_apps}, {names_of_tokens}, token)"
            chosen = ", ".join({**changes, "token": named}.get(name, name) for name in columns)
            await self._command(
                f"INSERT INTO device_commands ({', '.join(columns)})"  # noqa: S608
                f" SELECT {chosen} FROM device_commands WHERE {of_tokens}",
                values,
            )
            deleted = await self._alter(
                "device_commands",
                "DELETE",
                f"appkey IN {{apps}} AND NOT {_IS_STUB} AND (_partition, _offset) IN (SELECT _partition, _offset"  # noqa: S608
                " FROM device_commands WHERE appkey IN {apps} AND token IN {names})",
            )
        is_full = "(detail != '' OR details != '' OR address != '')"
        is_named = "appkey IN {apps} AND token IN {names} AND command != 'erase'"
        updated = await self._update("device_commands", changes, f"{is_named} AND {is_full}")
        return deleted or updated

    async def _forget_actions(self, clear: Mapping[tuple[str, str], str], aliases: set[tuple[str, str]]) -> bool:
        """Empty the lines of actions in which a token, an alias or its name stands."""
        names = [*self._name_of.values(), *(name for _, name in self._aliases_of)]
        found = await self._rows(
            "SELECT _topic, _partition, _offset FROM actions WHERE appkey IN {apps}"
            " AND _topic IN ('device-commands', 'log-ins') AND detail != ''"
            " AND (arrayExists(word -> position(detail, word) > 0, {words}) OR arrayExists(alias -> detail = alias OR"
            " startsWith(detail, concat(alias, ', ')), {aliases}))"
            " AND toUnixTimestamp64Milli(time) <= {latest}",
            {
                "words": _texts([*(token for _, token in clear), *names]),
                "aliases": _texts(alias for _, alias in aliases),
                "latest": str(max(self._time_ms.values())),
            },
        )
        if not found:
            return False
        places = ", ".join(f"({_text(topic)}, {partition}, {offset})" for topic, partition, offset in found)
        changes = {
            "detail": "''",
            "details": "''",
            "address": "if(_topic = 'device-commands', '', address)",
        }
        return await self._update("actions", changes, f"detail != '' AND (_topic, _partition, _offset) IN ({places})")

    async def _forget_pushes(self) -> list[bool]:
        """Empty pushes to few devices of which one is erased; of larger lists, the request, which has their tokens."""
        return [
            await self._update(
                "pushes",
                {
                    "title": "if(length(target_numbers) <= {few}, '', title)",
                    "text": "if(length(target_numbers) <= {few}, '', text)",
                    "address": "if(length(target_numbers) <= {few}, '', address)",
                    "request_json": "''",
                    "erased": (
                        f"if(length(target_numbers) <= {{few}}, fromUnixTimestamp64Milli(toInt64({_ERASED_MS}), 'UTC'),"
                        " erased)"
                    ),
                },
                "appkey IN {apps} AND if(length(target_numbers) <= {few}, toUnixTimestamp64Milli(erased) = 0,"
                f" request_json != '') AND {_ERASED_MS} < {{never}}",
            ),
            await self._update(
                "pushes",
                {"request_json": "''"},
                "appkey IN {apps} AND request_json != '' AND request_id != ''"
                f" AND request_id IN (SELECT request_id {_ERASED_PUSHES})",
            ),
            await self._update(
                "broadcasts",
                {"title": "''", "text": "''"},
                "appkey IN {apps} AND (title != '' OR text != '')"
                f" AND (appkey, msgid) IN (SELECT appkey, msgid {_ERASED_PUSHES})",
            ),
        ]

    async def _forget_tasks(self, clear: Mapping[tuple[str, str], str], aliases: set[tuple[str, str]]) -> list[bool]:
        """Empty the pushes of tasks that were sent, as those; and of others those whose few targets are erased."""
        is_full = "appkey IN {apps} AND (title != '' OR text != '' OR request_json != '')"
        words = [*(token for _, token in clear), *(f'"{alias}"' for _, alias in aliases)]
        found = await self._rows(
            f"SELECT appkey, msgid FROM task_pushes WHERE {is_full}"  # noqa: S608
            " AND arrayExists(word -> position(request_json, word) > 0, {words})"
            " AND match(audience, '^[0-9]+ (token|alias)') AND toUInt32OrZero(splitByChar(' ', audience)[1]) <= {few}",
            {"words": _texts(words)},
        )
        places = ", ".join(f"({_text(appkey)}, {msgid})" for appkey, msgid in found) or "('', 0)"
        of_sent = f"SELECT appkey, msgid {_ERASED_PUSHES}"
        of_large = "SELECT appkey, msgid FROM pushes WHERE appkey IN {apps} AND length(target_numbers) > {few}"
        return [
            await self._update(
                "task_pushes",
                {"title": "''", "text": "''", "request_json": "''"},
                f"{is_full} AND ((appkey, msgid) IN ({of_sent}) OR (appkey, msgid) IN ({places}))",
            ),
            await self._update(
                "task_pushes",
                {"request_json": "''"},
                "appkey IN {apps} AND request_json != '' AND (appkey, msgid) IN"
                f" ({of_large} AND request_json = '' AND {_ERASED_MS} < {{never}})",
            ),
        ]

    async def _forget_tokens(self, table: str, device: str) -> bool:
        """Put the names in place of the tokens, for all numbers of each device."""
        key = f"concat(appkey, '/', toString({device}))"
        where = f"appkey IN {{apps}} AND {key} IN {{keys}} AND NOT {_IS_WHOLE_STUB}"
        return await self._update(table, {"token": f"transform({key}, {{keys}}, {{stubs}}, token)"}, where)

    async def _forget_devices(self) -> bool:
        """Delete all states of a device but what is left of it in the log."""
        of_numbers = f"concat(appkey, '/', toString({_OF_ROW})) IN {{keys}}"
        where = f"appkey IN {{apps}} AND {of_numbers} AND NOT {_IS_WHOLE_STUB}"
        return await self._alter("devices", "DELETE", where)

    async def _update(self, table: str, changes: Mapping[str, str], where: str) -> bool:
        assigned = ", ".join(f"{column} = {value}" for column, value in changes.items())
        return await self._alter(table, f"UPDATE {assigned}", where)

    async def _alter(self, table: str, action: str, where: str) -> bool:
        """Change the rows of a table, and wait until it is done; return False, and do nothing, if there are none.

        The statement is in ClickHouse's files for a while, so it has no value of a person.
        """
        where = self._filled(where, {})
        if not await self._clickhouse.rows(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1"):  # noqa: S608
            return False
        await self._clickhouse.command(f"ALTER TABLE {table} {self._filled(action, {})} WHERE {where}")
        ERASURE_STATEMENTS.labels(table).inc()
        while waiting := await self._clickhouse.rows(_WAITING, {"table": table}):
            if any(reason for (reason,) in waiting):
                raise UnavailableError(f"ClickHouse does not empty {table}: {waiting[0][0]}")
            await asyncio.sleep(_POLL_S)
        return True

    async def _rows(self, query: str, values: Mapping[str, str] | None = None) -> Sequence[Sequence[Any]]:
        return await self._clickhouse.rows(self._filled(query, values or {}))

    async def _command(self, statement: str, values: Mapping[str, str]) -> None:
        await self._clickhouse.command(self._filled(statement, values))

    def _filled(self, statement: str, values: Mapping[str, str]) -> str:
        given = {**self._texts, **values}
        return _PLACE.sub(lambda found: given[found[1]], statement)


_WAITING = """
SELECT latest_fail_reason FROM system.mutations
WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done
"""


_PLACE = re.compile(r"\{([a-z_]+)\}")


def _text(value: str) -> str:
    """Return a text as ClickHouse's SQL writes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _texts(values: Iterable[str]) -> str:
    found = ", ".join(map(_text, values))
    return f"[{found}]" if found else "CAST([], 'Array(String)')"


def _numbers(values: Iterable[int]) -> str:
    return f"[{', '.join(map(str, values))}]"
