"""`carillon status`: which processes own the shards of the roles with standbys, and which ones stand by."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import NamedTuple

import click
import uvloop
from google.protobuf.message import DecodeError

from carillon.commands.output import Listing, say, show
from carillon.environment import environment
from carillon.installation.options import refuse_console
from carillon.startup import plain_errors
from protos.runtime.v1.instances_pb2 import InstanceFact
from services.domain.role_context import open_log
from services.domain.settings import Settings, load
from services.domain.topics import INSTANCES
from services.errors import InputError
from services.log.port import Log, Partition
from services.process.clock import SystemClock
from services.replica.catch_up import read_until
from services.replica.instances import ABSENT_AFTER, RECENT_RECORDS, Instances
from services.replica.membership import RENEWAL_INTERVAL_S

_SILENT_S = 2 * ABSENT_AFTER * RENEWAL_INTERVAL_S
_FORGOTTEN_S = 600
"""A process that was silent for longer is not shown: it was killed, or ran before the log was restored."""

_PARTITION = Partition(INSTANCES.name, 0)


class OffsetFact(NamedTuple):
    """A record of topic `instances`."""

    offset: int
    fact: InstanceFact


class InstanceStatus(NamedTuple):
    """The status of a process, read from the log. `state`: owner, standby, starting, or silent for a few seconds.

    `epoch` and `owner_since` are those of an owner; `heard_s_ago` goes by the clocks of both machines.
    """

    role: str
    shard: int
    state: str
    address: str
    epoch: int | None
    owner_since: str | None
    heard_s_ago: float


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> None:
    """Show which processes own the shards of registry, targeting, scheduling and delivery, and which ones stand by.

    It reads the event log (CARILLON_KAFKA_BOOTSTRAP), where the processes say twice a second that they are alive.
    Administrators of the installation see the same in the console's overview; API tokens, which are for one team, do
    not show it.
    """
    refuse_console("carillon status", "reads the event log, and no team's token may; the console's overview shows it")
    with plain_errors():
        settings = load(Settings, environment())
        if settings.kafka_bootstrap is None:
            raise InputError(
                "set CARILLON_KAFKA_BOOTSTRAP; an installation of `carillon up` is one process, which owns every shard"
            )
        found = instance_statuses(uvloop.run(recent_facts(settings)), SystemClock().now_ms())
    if as_json:
        say(json.dumps({"instances": [each._asdict() for each in found]}))
        return
    instances = Listing()
    for name in ("role", "shard", "state", "address", "epoch", "owner since", "heard s ago"):
        instances.add_column(name)
    for each in found:
        instances.add(*("" if value is None else str(value) for value in each))
    show(instances)


def instance_statuses(facts: Sequence[OffsetFact], now_ms: int) -> list[InstanceStatus]:
    """Return the processes that have not left, by role and shard, owners first; without replaced and forgotten ones."""
    return sorted(_statuses(facts, now_ms), key=lambda each: (each.role, each.shard, each.state, each.address))


def _statuses(facts: Sequence[OffsetFact], now_ms: int) -> Iterator[InstanceStatus]:
    instances = present(facts)
    heard_ms = {fact.instance: fact.meta.time_ms for _, fact in facts}
    latest_ms: dict[tuple[str, int, str], int] = {}
    for each in instances.all():
        where = each.alive.role, each.alive.shard, each.alive.address
        latest_ms[where] = max(heard_ms[each.id], latest_ms.get(where, 0))
    for each in instances.all():
        alive, silent_s = each.alive, (now_ms - heard_ms[each.id]) / 1000
        is_replaced = heard_ms[each.id] < latest_ms[alive.role, alive.shard, alive.address]
        if silent_s > _FORGOTTEN_S or (is_replaced and silent_s > _SILENT_S):
            continue
        state, epoch, since = "starting", None, None
        if silent_s > _SILENT_S:
            state = "silent"
        elif instances.owner(alive.role, alive.shard) is each:
            state, epoch = "owner", alive.epoch
            since = datetime.fromtimestamp(alive.owner_since_ms / 1000, UTC).isoformat(timespec="seconds")
        elif alive.caught_up:
            state = "standby"
        yield InstanceStatus(alive.role, alive.shard, state, alive.address, epoch, since, round(silent_s, 1))


def present(facts: Sequence[OffsetFact]) -> Instances:
    """Return the instances that the facts announce. Facts that no instance can have written are left out."""
    instances = Instances()
    for offset, fact in facts:
        with suppress(ValueError):
            instances.apply(fact, offset)
    return instances


async def recent_facts(settings: Settings) -> list[OffsetFact]:
    """Return the latest records of topic `instances`, enough to include every process that is present."""
    log = await open_log(settings, read_only=True)
    try:
        return [fact async for fact in _facts(log)]
    finally:
        await log.close()


async def _facts(log: Log) -> AsyncIterator[OffsetFact]:
    ends = await log.ends([_PARTITION])
    start = {_PARTITION: max(0, ends[_PARTITION] - RECENT_RECORDS)}
    async with aclosing(read_until("status", log, start, ends)) as batches:
        async for records, _ in batches:
            for record in records:
                try:
                    yield OffsetFact(record.offset, InstanceFact.FromString(record.value))
                except DecodeError:
                    continue
