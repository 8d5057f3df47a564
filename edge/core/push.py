"""Pushes into the log: what every generation of the interface comes down to."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import Audience, Kind, Message, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, CreateTask, TaskCommand
from services.domain.audience_resolver import AudienceResolver, ResolvedAudience
from services.domain.command_writer import CommandWriter, push_command, task_command
from services.domain.ids import MessageIds
from services.runtime.errors import InputError
from services.runtime.log.port import MAX_RECORD_BYTES
from services.runtime.process.clock import Clock


class Push(msgspec.Struct, frozen=True):
    """One message to one app. `audience` is unresolved where it names tokens or aliases.

    `must_exist`: nothing is sent, and no id taken, when the token it names is unknown.
    """

    app: AppRef
    kind: "Kind.ValueType"
    audience: Audience
    message: Message
    period_s: int
    qps: int
    must_exist: bool = False


MAX_AUDIT_CHARACTERS = 256 * 1024
"""A request longer than this is not kept for the audit."""

MAX_TASK_BYTES = MAX_RECORD_BYTES - 128 * 1024
"""A task's targets are resolved when it is due: ten devices for each of a thousand aliases must still fit."""


class Receipt(NamedTuple):
    """What became of one push: its first id (0: not sent), positions of unknown tokens, aliases without a device, and
    how many devices each alias led to."""

    msgid: int
    unknown: Sequence[int] = ()
    not_found: Sequence[str] = ()
    reached: Sequence[int] = ()


def new_task_key() -> str:
    """32 hexadecimal digits."""
    return secrets.token_hex(16)


class Prepared(NamedTuple):
    """Pushes with their ids and targets, not in the log yet. `due_ms` None: to be sent at once."""

    commands: Sequence[SendPush]
    receipts: Sequence[Receipt]
    origin: Origin
    due_ms: int | None
    task_key: str


class Pushes:
    """Resolves pushes and gives them ids, then writes them to the log as they are or as a timed task."""

    def __init__(self, writer: CommandWriter, targets: AudienceResolver, ids: MessageIds, clock: Clock) -> None:
        self._writer = writer
        self._targets = targets
        self._ids = ids
        self._clock = clock

    async def prepare(
        self, pushes: Sequence[Push], origin: Origin, request_json: str, due_ms: int | None = None, task_key: str = ""
    ) -> Prepared:
        """Look the targets up, or leave them for `due_ms`, and take ids. Nothing is written."""
        if due_ms is not None:
            resolved = [ResolvedAudience(push.audience, _id_count(push.audience)) for push in pushes]
        elif len(pushes) == 1:
            resolved = [await self._targets.resolve(pushes[0].app.appkey, pushes[0].audience)]
        else:
            resolved = await asyncio.gather(*(self._targets.resolve(push.app.appkey, push.audience) for push in pushes))
        commands: list[SendPush] = []
        receipts: list[Receipt] = []
        for push, found in zip(pushes, resolved, strict=True):
            if push.must_exist and found.unknown:
                receipts.append(Receipt(0, found.unknown))
                continue
            commands.append(self._command(push, found, "" if commands else request_json, task_key))
            receipts.append(Receipt(commands[-1].msgid, found.unknown, found.not_found, found.device_counts))
        return Prepared(commands, receipts, origin, due_ms, task_key)

    async def commit(self, prepared: Prepared) -> None:
        """Write what was prepared; returns once it is durable, and a task is known to scheduling."""
        if prepared.due_ms is not None:
            create = CreateTask(pushes=prepared.commands, due_ms=prepared.due_ms)
            await self._create(prepared, prepared.task_key, create)
            return
        commands = [push_command(PushCommand(send=send)) for send in prepared.commands]
        await self._writer.append(commands, prepared.origin)

    async def commit_claim(self, task_key: str, prepared: Prepared, claim: Claim) -> None:
        """Make a task of what was prepared, also where it is sent at once; returns once its claim is decided."""
        due_ms = self._clock.now_ms() if prepared.due_ms is None else prepared.due_ms
        create = CreateTask(pushes=prepared.commands, due_ms=due_ms, claim=claim, at_once=prepared.due_ms is None)
        await self._create(prepared, task_key, create)

    async def _create(self, prepared: Prepared, task_key: str, create: CreateTask) -> None:
        command = TaskCommand(task_key=task_key, create=create)
        if command.ByteSize() > MAX_TASK_BYTES:
            raise InputError(f"the request is too large: it makes a task of {command.ByteSize()} bytes")
        await self._writer.append_and_wait([task_command(command)], prepared.origin)

    def _command(self, push: Push, found: ResolvedAudience, request_json: str, task_key: str) -> SendPush:
        return SendPush(
            msgid=self._ids.take(found.id_count),
            id_count=found.id_count,
            appkey=push.app.appkey,
            platform=push.app.platform,
            kind=push.kind,
            audience=found.audience,
            message=push.message,
            period_s=push.period_s,
            qps=push.qps,
            task_key=task_key,
            request_json=request_json if len(request_json) <= MAX_AUDIT_CHARACTERS else "",
        )


def _id_count(audience: Audience) -> int:
    return len(audience.tokens.tokens) if audience.WhichOneof("audience") == "tokens" else 1
