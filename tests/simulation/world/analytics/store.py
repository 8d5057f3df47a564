"""A model of the analytics store, as the ingestion uses it: inserts with tokens, and the questions of its start.

It behaves as a server: a request that was sent is carried out even if its sender is killed meanwhile.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from analytics.ingestion import attributes, batch_writer, known_ids
from analytics.ingestion import attributes as attribute_changes
from analytics.ingestion.connections import history
from analytics.store.columns import ATTRIBUTES
from analytics.store.sql import sql
from services.errors import UnavailableError
from testkit.repository import ROOT
from tests.simulation.kernel.latency import Latency

Row = Mapping[str, Any]

_TIMEOUT_S = 5.0
_INGESTERS_OF_SUMS = tuple(f"SELECT DISTINCT ingester FROM {table}" for table in batch_writer.SUMS)
_TOLD_BY = {**attributes.OF_REGISTRATIONS, "attribute_changes": attribute_changes.READ}
_BROADCAST_IDS = "SELECT DISTINCT msgid FROM pushes WHERE kind != 'unicast' ORDER BY msgid"
_NEWEST_PUSH = "SELECT toUnixTimestamp64Milli(max(time)) FROM pushes"
_COMMENT = re.compile("--.*")
_CREATED = re.compile(
    r"CREATE TABLE IF NOT EXISTS (\w+)[^;]*?ENGINE = ReplacingMergeTree\(_rank\)[^;]*?ORDER BY \(([^)]+)\)"
)


class Insert(NamedTuple):
    """Rows that were inserted into a table at a time, by an ingester."""

    ingester: str
    table: str
    rows: Sequence[Row]


class Request(NamedTuple):
    """A request that changed the store: an insert into the table `text`, or without rows the statement `text`."""

    text: str
    parameters: Mapping[str, Any]
    rows: pa.Table | None = None
    token: str = ""


class ModelStore:
    """Takes the place of analytics.store.clickhouse.ClickHouse where an Ingestion is given one.

    While it `is_away` requests fail after a while. `fault_rate` of the requests fail; half of these are carried out.
    `requests` are those that changed the store, in order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: Latency, chance: Callable[[], float]) -> None:
        """`chance` returns random numbers from 0 to 1."""
        self.is_away = False
        self.fault_rate = 0.0
        self.inserts: list[Insert] = []
        self.requests: list[Request] = []
        self._loop = loop
        self._delay_s = delay_s
        self._chance = chance
        self._tokens: set[str] = set()
        self._ingesters: dict[str, str] = {}

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Insert once for each token. UnavailableError: the rows may be inserted or not."""
        await self._carried_out(lambda: self._insert(table, rows, token))

    async def command(self, text: str, parameters: Mapping[str, Any] | None = None) -> None:
        await self._carried_out(lambda: self._command(text, parameters or {}))

    async def rows(self, text: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = await self._carried_out(lambda: self._rows(text, parameters or {}))
        return found

    async def arrow(self, text: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        return await self._carried_out(lambda: self._table(text, parameters or {}))

    def inserted(self, table: str) -> Iterable[Row]:
        """Return the rows of a table as they were inserted, in order."""
        return (row for insert in self.inserts if insert.table == table for row in insert.rows)

    def final(self, table: str) -> Sequence[Row]:
        """Return the rows of a table as they are after all merges: for each key the row of the earliest record."""
        key = _keys()[table]
        found: dict[tuple[Any, ...], Row] = {}
        for row in self.inserted(table):
            name = tuple(row[column] for column in key)
            if name not in found or row["_offset"] < found[name]["_offset"]:
                found[name] = row
        return list(found.values())

    async def _carried_out(self, request: Callable[[], Any]) -> Any:
        """Send a request and wait for its answer. It runs outside the process that waits, which may end meanwhile."""
        answer = self._loop.create_future()
        self._loop.call_later(self._delay_s(), self._receive, request, answer, context=Context())
        return await answer

    def _receive(self, request: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        if self.is_away:
            self._loop.call_later(_TIMEOUT_S, self._fail, answer, "it does not answer", context=Context())
            return
        is_lost = self._chance() < self.fault_rate
        if is_lost and self._chance() < 0.5:
            self._loop.call_later(self._delay_s(), self._fail, answer, "the request was lost", context=Context())
            return
        result = request()
        if is_lost:
            self._loop.call_later(self._delay_s(), self._fail, answer, "the answer was lost", context=Context())
        else:
            self._loop.call_later(self._delay_s(), self._answer, answer, result, context=Context())

    @staticmethod
    def _answer(answer: "asyncio.Future[Any]", result: Any) -> None:
        if not answer.done():
            answer.set_result(result)

    @staticmethod
    def _fail(answer: "asyncio.Future[Any]", reason: str) -> None:
        if not answer.done():
            answer.set_exception(UnavailableError(f"ClickHouse: {reason}"))

    def _insert(self, table: str, rows: pa.Table, token: str) -> None:
        if token not in self._tokens:
            self._tokens.add(token)
            self.inserts.append(Insert(token.partition(":")[0], table, rows.to_pylist()))
            self.requests.append(Request(table, {}, rows, token))

    def _command(self, text: str, parameters: Mapping[str, Any]) -> None:
        if text == batch_writer._REGISTER:
            self._ingesters[parameters["instance"]] = parameters["identity"]
        elif text not in ("TRUNCATE TABLE broadcast_counts", batch_writer._DELETE_OTHER_SHARDS):
            raise NotImplementedError(text)
        self.requests.append(Request(text, parameters))

    def _rows(self, text: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        if text == batch_writer._IDENTITY:
            found = self._ingesters.get(parameters["instance"])
            return [(found,)] if found else []
        if text == batch_writer._REGISTERED:
            return [(identity,) for identity in self._ingesters.values()]
        for table, condition in _TOLD_BY.items():
            if text == attributes.group_sizes(table, condition):
                return self._group_sizes(table, parameters)
        if text == attribute_changes.REVISIONS:
            revisions: defaultdict[int, int] = defaultdict(int)
            for row in self._telling("attribute_changes", parameters):
                revisions[row["partition"]] = max(row["revision"], revisions[row["partition"]])
            return list(revisions.items())
        if text == _NEWEST_PUSH:
            return [(max((int(row["time"].timestamp() * 1000) for row in self.inserted("pushes")), default=0),)]
        if text == attribute_changes.FORMER:
            return [
                (row["_offset"], row["appkey"], row["number"], row["former"])
                for row in sorted(self.final("attribute_changes"), key=lambda row: row["_offset"])
                if row["partition"] == parameters["partition"]
                and parameters["since"] <= row["_offset"] < parameters["until"]
            ]
        if text in (*_INGESTERS_OF_SUMS, history._GROUPS, sql(history.__package__, "gateway_lives")):
            return []  # sums are not modelled: neither of earlier ingesters, nor of earlier connections
        raise NotImplementedError(text)

    def _group_sizes(self, table: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        counts = Counter((row["appkey"], row["partition"]) for row in self._telling(table, parameters))
        return [(*group, count) for group, count in sorted(counts.items())]

    def _telling(self, table: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a table that tell what devices have; see `_TOLD_BY`."""
        ends = dict(zip(parameters.get("partitions", ()), parameters.get("ends", ()), strict=True))
        tells: Mapping[str, Callable[[Row], bool]] = {
            "registrations": lambda row: row["kept"],
            "devices": lambda row: row["attributes_revision"] == 0,
            "attribute_changes": lambda row: row["_offset"] < ends.get(row["partition"], 0),
        }
        return [row for row in self.final(table) if tells[table](row)]

    def _table(self, text: str, parameters: Mapping[str, Any]) -> pa.Table:
        if text == known_ids._KNOWN:
            return self._known_devices()
        if text == _BROADCAST_IDS:
            msgids = {row["msgid"] for row in self.inserted("pushes") if row["kind"] != "unicast"}
            return pa.table({"msgid": pa.array(sorted(msgids), pa.uint64())})
        for table, condition in _TOLD_BY.items():
            if text == attributes.latest_rows(table, condition):
                return self._latest_attributes(self._telling(table, parameters))
        raise NotImplementedError(text)

    def _known_devices(self) -> pa.Table:
        numbers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for row in self.final("registrations"):
            numbers[row["appkey"], row["partition"]].append(row["number"])
        appkeys, partitions = zip(*numbers, strict=True) if numbers else ((), ())
        lists = pa.array(list(numbers.values()), pa.list_(pa.uint32()))
        return pa.table({"appkey": pa.array(appkeys, pa.string()), "partition": list(partitions), "numbers": lists})

    def _latest_attributes(self, told: Sequence[Row]) -> pa.Table:
        latest: dict[tuple[str, int, int], Row] = {}
        for row in told:
            name = row["appkey"], row["partition"], row["number"]
            if name not in latest or row["_offset"] > latest[name]["_offset"]:
                latest[name] = row
        rows = [latest[name] for name in sorted(latest)]
        texts = {
            name: pa.array([row[name] for row in rows], pa.string()).dictionary_encode()
            for name in ("appkey", *ATTRIBUTES)
        }
        numbers = {name: pa.array([row[name] for row in rows], pa.uint32()) for name in ("partition", "number")}
        return pa.table({**texts, **numbers})


@cache
def _keys() -> Mapping[str, Sequence[str]]:
    """Return the key of each table whose rows replace each other, as the migrations create it."""
    found = {}
    for path in sorted((ROOT / "analytics/store/migrations").rglob("*.sql")):
        for table, key in _CREATED.findall(_COMMENT.sub("", path.read_text(encoding="utf-8"))):
            found[table] = [column.strip() for column in key.split(",")]
    return found
