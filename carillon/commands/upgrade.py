"""`carillon upgrade --check`: whether an installation is in a state in which an upgrade, role by role, can begin."""

import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import click
import uvloop

from carillon.commands.output import Listing, say, show
from carillon.commands.status import InstanceStatus, instance_statuses, recent_facts
from carillon.environment import environment
from carillon.installation.options import refuse_console
from carillon.startup import plain_errors
from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessStage
from services.domain.role_context import ROLES_WITH_STANDBYS, open_log
from services.domain.settings import Settings, load
from services.errors import InputError
from services.process.build import build
from services.process.clock import Clock, SystemClock
from services.replica.catch_up import read_until
from services.replica.dead_letters import UNUSABLE
from services.replica.status_board import PROCESSES_PARTITION, RECENT_RECORDS, Process, StatusBoard

ORDER = (
    *("analytics", "webhooks", "targeting", "delivery", "scheduling", "registry", "accounts"),
    *("gateway", "edge", "console"),
)
"""The order in which roles are upgraded: those that read records before those that write them."""

LATE_MS = 10_000
"""A role that is further behind the log is not upgraded: its next process would start further behind."""

_OPTIONAL = ("accounts", "console", "webhooks")
_STAGES = {
    ProcessStage.PROCESS_STAGE_STARTING: "starting",
    ProcessStage.PROCESS_STAGE_READY: "ready",
    ProcessStage.PROCESS_STAGE_STOPPING: "stopping",
}


class RunningProcess(NamedTuple):
    """A process as it has announced itself. `state`: starting, ready, not ready, stopping, or silent."""

    role: str
    host: str
    version: str
    state: str


class UpgradeCheck(NamedTuple):
    """The running processes in the order of their upgrade, and the problems to mend before it."""

    processes: Sequence[RunningProcess]
    findings: Sequence[str]


@click.command()
@click.option("--check", is_flag=True, help="Look whether an upgrade can begin. It changes nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def upgrade(check: bool, as_json: bool) -> None:
    """Look whether an upgrade to this version, role by role, can begin; run it with the new version.

    It reads the event log (CARILLON_KAFKA_BOOTSTRAP): every topic of this version is there, every role answers, each
    process is ready and caught up, and each role with standbys has an owner and one. Exit code 1: something must be
    mended before, and is named. The upgrade itself is done by whatever starts the processes.
    """
    refuse_console("carillon upgrade", "reads the event log, and no team's token may")
    if not check:
        raise click.UsageError("give --check; the processes are upgraded by what starts them, in the order it prints")
    with plain_errors():
        settings = load(Settings, environment())
        if settings.kafka_bootstrap is None:
            raise InputError(
                "set CARILLON_KAFKA_BOOTSTRAP; an installation of `carillon up` is one process: make a backup, stop it,"
                " install the new version, and start it"
            )
        clock = SystemClock()
        processes = uvloop.run(announced(settings, clock))
        instances = instance_statuses(uvloop.run(recent_facts(settings)), clock.now_ms())
    found = checked(processes, instances, clock.now_ms())
    if as_json:
        listed = [each._asdict() for each in found.processes]
        say(json.dumps({"version": str(build()), "processes": listed, "findings": list(found.findings)}))
    else:
        listing = Listing()
        for name in RunningProcess._fields:
            listing.add_column(name)
        for each in found.processes:
            listing.add(*each)
        show(listing)
        say(*found.findings)
        say(
            "Mend this before an upgrade."
            if found.findings
            else f"An upgrade to {build()} can begin, in this order: {', '.join(ORDER)}."
        )
    if found.findings:
        raise click.exceptions.Exit(1)


def checked(processes: Sequence[Process], instances: Sequence[InstanceStatus], now_ms: int) -> UpgradeCheck:
    """Check the processes, and return them with the problems to mend before an upgrade."""
    running = sorted(
        (
            RunningProcess(role.role, each.status.host, each.status.version, _state(each, now_ms))
            for each in processes
            for role in each.status.roles
        ),
        key=lambda each: (ORDER.index(each.role) if each.role in ORDER else len(ORDER), each.host),
    )
    return UpgradeCheck(running, [*_missing(running), *_of_processes(processes, now_ms), *_of_owners(instances)])


def _missing(running: Sequence[RunningProcess]) -> Iterator[str]:
    there = {each.role for each in running}
    for role in ORDER:
        if role not in there and role not in _OPTIONAL:
            yield f"{role}: no process of this role was heard of"


def _of_processes(processes: Sequence[Process], now_ms: int) -> Iterator[str]:
    for each in processes:
        for role in each.status.roles:
            who, state = f"{role.role} on {each.status.host}", _state(each, now_ms)
            if state != "ready":
                why = "; ".join(f"{problem.part}: {problem.text}" for problem in each.status.problems)
                yield f"{who}: {state}{': ' if why else ''}{why}"
            elif role.lag_ms > LATE_MS:
                yield f"{who}: {role.lag_records} records behind the log, for {role.lag_ms // 1000} s"


def _of_owners(instances: Sequence[InstanceStatus]) -> Iterator[str]:
    states: dict[tuple[str, int], list[str]] = {}
    for each in instances:
        states.setdefault((each.role, each.shard), []).append(each.state)
    for role in sorted(ROLES_WITH_STANDBYS - {role for role, _ in states}):
        states[role, 0] = []
    for (role, shard), found in sorted(states.items()):
        for state in ("owner", "standby"):
            if state not in found:
                yield f"{role}, shard {shard}: no {state} that has caught up"


def _state(process: Process, now_ms: int) -> str:
    if process.is_silent(now_ms):
        return "silent"
    if process.status.problems:
        return "not ready"
    return _STAGES.get(process.status.stage, "unknown")


async def announced(settings: Settings, clock: Clock) -> Sequence[Process]:
    """Return the processes that have announced themselves in the log lately and have not left.

    CarillonError: the log lacks a topic of this version, or does not answer.
    """
    log = await open_log(settings, read_only=True)
    board = StatusBoard(clock)
    try:
        ends = await log.ends([PROCESSES_PARTITION])
        start = {PROCESSES_PARTITION: max(0, ends[PROCESSES_PARTITION] - RECENT_RECORDS)}
        async with aclosing(read_until("upgrade", log, start, ends)) as batches:
            async for records, _ in batches:
                for record in records:
                    try:
                        board.apply(ProcessFact.FromString(record.value), is_new=False)
                    except UNUSABLE:
                        continue
    finally:
        await log.close()
    return board.processes()
