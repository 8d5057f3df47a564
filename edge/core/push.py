"""Pushes into the log: what every generation of the interface comes down to."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from edge.core.sign import AppRef
from edge.core.writer import Writer
from protos.push.v1.push_pb2 import Audience, Kind, Message, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta, Origin
from protos.scheduling.v1.scheduling_pb2 import CreateTask, TaskCommand
from services.runtime.clock import Clock
from services.runtime.ids import MessageIds, event_id
from services.runtime.log import Draft
from services.runtime.targets import Resolved, Targets
from services.runtime.topics import PUSH_COMMANDS, TASK_COMMANDS, partition_of


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


class Receipt(NamedTuple):
    """What became of one push: its first id (0: not sent), positions of unknown tokens, aliases without a device."""

    msgid: int
    unknown: Sequence[int] = ()
    not_found: Sequence[str] = ()


class Pushes:
    """Writes pushes and timed tasks to the log and answers once they are durable there."""

    def __init__(self, writer: Writer, targets: Targets, ids: MessageIds, clock: Clock, partitions: int) -> None:
        self._writer = writer
        self._targets = targets
        self._ids = ids
        self._clock = clock
        self._partitions = partitions

    async def send(self, pushes: Sequence[Push], origin: Origin, request_json: str) -> list[Receipt]:
        """Send now; one receipt a push. All targets are looked up before anything is written."""
        if len(pushes) == 1:
            resolved = [await self._targets.resolve(pushes[0].app.appkey, pushes[0].audience)]
        else:
            resolved = list(
                await asyncio.gather(*(self._targets.resolve(push.app.appkey, push.audience) for push in pushes))
            )
        receipts: list[Receipt] = []
        drafts: list[Draft] = []
        for push, found in zip(pushes, resolved, strict=True):
            if push.must_exist and found.unknown:
                receipts.append(Receipt(0, found.unknown))
                continue
            command = self._command(push, found, "" if drafts else request_json)
            receipts.append(Receipt(command.msgid, found.unknown, found.not_found))
            value = PushCommand(meta=self._meta(origin), send=command).SerializeToString()
            drafts.append(Draft(PUSH_COMMANDS.name, 0, str(command.msgid).encode(), value))
        await self._writer.append(drafts)
        return receipts

    async def schedule(
        self, pushes: Sequence[Push], due_ms: int, origin: Origin, request_json: str
    ) -> tuple[str, list[Receipt]]:
        """Send at `due_ms`, to those the targets name by then; returns the task's key and a receipt a push."""
        key = secrets.token_hex(16)
        commands = [
            self._command(push, Resolved(push.audience, _id_count(push.audience)), "" if index else request_json, key)
            for index, push in enumerate(pushes)
        ]
        task = TaskCommand(
            meta=self._meta(origin), task_key=key, create=CreateTask(pushes=commands, due_ms=due_ms)
        ).SerializeToString()
        partition = partition_of(key.encode(), self._partitions)
        await self._writer.settle(Draft(TASK_COMMANDS.name, partition, key.encode(), task))
        return key, [Receipt(command.msgid) for command in commands]

    def _meta(self, origin: Origin) -> Meta:
        return Meta(event_id=event_id(), time_ms=self._clock.now_ms(), writer="edge", origin=origin)

    def _command(self, push: Push, found: Resolved, request_json: str, task_key: str = "") -> SendPush:
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
