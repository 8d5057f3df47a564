"""Push requests, and their pushes as commands in the log: the common part of the v2 and the legacy interfaces."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from edge.core.admission import (
    AdmittedRequest,
    PushAdmission,
    RequestedPush,
    Signing,
    is_broadcast_or_multicast,
)
from edge.core.answers import Content, Reply
from edge.core.message_ids import MessageIds
from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import Audience, ChannelOptions, Kind, Message, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, CreateTask, TaskCommand
from services.domain.command_writer import CommandWriter, push_command, task_command
from services.domain.token_resolver import ResolvedAudience, TokenAndAliasResolver
from services.domain.topics import TASK_COMMANDS
from services.errors import Code, InputError
from services.log.port import MAX_RECORD_BYTES
from services.process import push_traces, stages
from services.process.clock import Clock, HangWatch

T = TypeVar("T")


class AppPush(msgspec.Struct, frozen=True):
    """One message to an audience of one app. The audience names tokens and aliases, which are resolved later.

    `must_exist`: nothing is sent, and no message id taken, when the token it names is unknown.
    """

    app: AppRef
    kind: "Kind.ValueType"
    audience: Audience
    message: Message
    period_s: int
    qps: int
    must_exist: bool = False
    channel: ChannelOptions | None = None
    label: str = ""


MAX_AUDIT_BYTES = 256 * 1024
"""The text of a longer request is not recorded with its push."""

MAX_PUSH_BYTES = MAX_RECORD_BYTES - 128 * 1024
"""Limit of a push, or of all pushes of a timed task, as a record of the log. The targets are resolved later, and ten
devices for each of a thousand aliases must still fit."""


class PushResult(NamedTuple):
    """The result of one push.

    `msgid`: its first message id, 0 when it is not sent; `unknown_tokens`: positions in the request;
    `unknown_aliases`: aliases without a device; `devices_by_alias`: number of devices, in the order of the aliases.
    """

    msgid: int
    unknown_tokens: Sequence[int] = ()
    unknown_aliases: Sequence[str] = ()
    devices_by_alias: Sequence[int] = ()


class RequestedPushes(NamedTuple):
    """The pushes of a request, sent at `due_ms`, or at once where it is None.

    `reply` makes the answer from a result for each push and the key of the task, "" when there is none.
    """

    pushes: Sequence[AppPush]
    reply: Callable[[Sequence[PushResult], str], Reply | Content]
    due_ms: int | None = None

    @property
    def sends_broadcast_or_multicast(self) -> bool:
        """Whether a broadcast or multicast is sent at once."""
        return self.due_ms is None and any(is_broadcast_or_multicast(push.audience) for push in self.pushes)

    @property
    def listed(self) -> int:
        """Number of tokens and aliases."""
        audiences = [push.audience for push in self.pushes]
        return sum(len(audience.tokens.tokens) + len(audience.aliases.aliases) for audience in audiences)


def new_task_key() -> str:
    """Return a random key of 32 hexadecimal digits."""
    return secrets.token_hex(16)


Sent = tuple[Reply | Content, SendPush | None]
"""The answer to a push request, and the last push that it has sent; None: none."""

Send = Callable[[RequestedPushes, Origin, str], Awaitable[Sent]]
"""Sends the pushes of a request with this origin and canonical text."""


class PreparedPushes(NamedTuple):
    """Pushes with message ids and resolved audiences that are not in the log yet. `due_ms` None: sent at once."""

    commands: Sequence[SendPush]
    results: Sequence[PushResult]
    origin: Origin
    due_ms: int | None
    task_key: str


class Pushes:
    """Resolves pushes and assigns message ids, then appends them to the log as push commands or as a timed task."""

    def __init__(
        self,
        admission: PushAdmission,
        writer: CommandWriter,
        resolver: TokenAndAliasResolver,
        ids: MessageIds,
        clock: Clock,
        hangs: HangWatch,
    ) -> None:
        self._admission = admission
        self._writer = writer
        self._resolver = resolver
        self._ids = ids
        self._clock = clock
        self._hangs = hangs

    async def send(self, requested: RequestedPushes, origin: Origin, text: str) -> Sent:
        """Prepare and commit the pushes of a request. Errors of both."""
        prepared, reply = await self.prepare_request(requested, origin, text)
        await self.commit(prepared)
        return reply, prepared.commands[-1] if prepared.commands else None

    async def prepare_request(
        self, requested: RequestedPushes, origin: Origin, text: str, task_key: str = ""
    ) -> tuple[PreparedPushes, Reply | Content]:
        """Prepare the pushes of a request, and make its answer. A timed one gets `task_key`, or a new one."""
        key = "" if requested.due_ms is None else task_key or new_task_key()
        prepared = await self.prepare(requested.pushes, origin, text, requested.due_ms, key)
        return prepared, requested.reply(prepared.results, prepared.task_key)

    async def prepare(
        self,
        pushes: Sequence[AppPush],
        origin: Origin,
        request_json: str,
        due_ms: int | None = None,
        task_key: str = "",
    ) -> PreparedPushes:
        """Take message ids and resolve the audiences. Appends nothing.

        A timed push keeps its audience unresolved, for when it is due; its results say what is unknown now.
        ForbiddenError: an app is paused. InputError: the log cannot take the push. TooManyRequestsError: an app is over
        its quota of targets, or too many of its pushes wait in delivery.
        """
        audit_json = request_json if len(request_json.encode()) <= MAX_AUDIT_BYTES else ""
        sizes = _checked_sizes(pushes, len(audit_json.encode()), is_timed=due_ms is not None)
        asked = [RequestedPush(push.app.appkey, push.audience, size) for push, size in zip(pushes, sizes, strict=True)]
        await self._admission.admit(asked, is_timed=due_ms is not None)
        resolved = await self._resolve(pushes)
        commands: list[SendPush] = []
        results: list[PushResult] = []
        for push, found in zip(pushes, resolved, strict=True):
            if push.must_exist and found.unknown and due_ms is None:
                results.append(PushResult(0, found.unknown))
                continue
            msgid = await self._ids.take(found.id_count)
            command = self._command(msgid, push, found, "" if commands else audit_json, task_key)
            if due_ms is not None:
                command.audience.CopyFrom(push.audience)
            commands.append(command)
            results.append(PushResult(commands[-1].msgid, found.unknown, found.not_found, found.device_counts))
        return PreparedPushes(commands, results, origin, due_ms, task_key)

    async def _resolve(self, pushes: Sequence[AppPush]) -> Sequence[ResolvedAudience]:
        if len(pushes) == 1:
            return [await self._resolver.resolve(pushes[0].app.appkey, pushes[0].audience)]
        return await asyncio.gather(*(self._resolver.resolve(push.app.appkey, push.audience) for push in pushes))

    async def commit(self, prepared: PreparedPushes) -> None:
        """Append the pushes; return once they are durable and, for timed ones, scheduling has applied the task.

        TooManyRequestsError: an app is over a quota; nothing was appended. UnavailableError: this process has hung.
        """
        self._hangs.check()
        stages.note("resolved", prepared.results[0].msgid, prepared.origin.request_id)
        if prepared.due_ms is not None:
            async with self._admission.committing(prepared.commands, is_timed=True):
                create = CreateTask(pushes=prepared.commands, due_ms=prepared.due_ms)
                await self._create(prepared, prepared.task_key, create)
        else:
            await self._admission.take_broadcasts(prepared.commands)
            commands = [push_command(PushCommand(send=send)) for send in prepared.commands]
            with push_traces.appending(prepared.origin.trace, prepared.results[0].msgid):
                await self._writer.append(commands, prepared.origin)
            stages.note("appended", prepared.results[0].msgid)

    async def commit_draft(self, prepared: PreparedPushes, submit: Callable[[CreateTask], Awaitable[T]]) -> T:
        """Count the pushes as `commit` does timed ones, and return the result of `submit` for them as a draft."""
        async with self._admission.committing(prepared.commands, is_timed=True):
            return await submit(CreateTask(pushes=prepared.commands, due_ms=prepared.due_ms or 0))

    async def commit_claim(
        self,
        task_key: str,
        prepared: PreparedPushes,
        claim: Claim,
        before_commit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Append the pushes as a task with a claim, timed or not; return once scheduling has decided the claim.

        Errors as for `commit`. After a hang of the process, scheduling may have forgotten the claim's key since.
        """
        self._hangs.check()
        due_ms = self._clock.now_ms() if prepared.due_ms is None else prepared.due_ms
        create = CreateTask(pushes=prepared.commands, due_ms=due_ms, claim=claim, at_once=prepared.due_ms is None)
        async with self._admission.committing(prepared.commands, is_timed=prepared.due_ms is not None):
            if before_commit is not None:
                await before_commit()
            await self._create(prepared, task_key, create)

    async def wait_claims_decided(self, partition: int) -> None:
        """Return once scheduling has decided every claim that the log holds in this partition now."""
        await self._writer.wait_applied(TASK_COMMANDS, partition)

    async def _create(self, prepared: PreparedPushes, task_key: str, create: CreateTask) -> None:
        command = TaskCommand(task_key=task_key, create=create)
        if command.ByteSize() > MAX_PUSH_BYTES:
            raise InputError(Code.TASK_TOO_LARGE, size=command.ByteSize())
        with push_traces.appending(prepared.origin.trace, prepared.results[0].msgid):
            await self._writer.append_and_wait([task_command(command)], prepared.origin)

    def _command(
        self, msgid: int, push: AppPush, found: ResolvedAudience, request_json: str, task_key: str
    ) -> SendPush:
        return SendPush(
            msgid=msgid,
            id_count=found.id_count,
            appkey=push.app.appkey,
            platform=push.app.platform,
            kind=push.kind,
            audience=found.audience,
            message=push.message,
            period_s=push.period_s,
            qps=push.qps,
            task_key=task_key,
            request_json=request_json,
            channel=push.channel,
            label=push.label,
        )


async def handle_push(
    admitted: AdmittedRequest[Signing], parse: Callable[[bytes], RequestedPushes], send: Send
) -> Reply | Content:
    """Handle a push request: parse it, send its pushes in a slot for requests of its size, and return the answer.

    Errors of `parse` and `send`. TooManyRequestsError: too many such requests wait.
    """
    requested = await admitted.read(parse)
    if requested.sends_broadcast_or_multicast:
        await admitted.enter_broadcast_or_multicast()
    else:
        await admitted.enter_list(requested.listed)
    reply, last = await send(requested, admitted.origin, admitted.text)
    if last is not None:
        if requested.sends_broadcast_or_multicast:
            admitted.keep_until_started(last)
        elif requested.due_ms is None:
            admitted.keep_for_targets(requested.listed)
    return reply


def _checked_sizes(pushes: Sequence[AppPush], audit_bytes: int, *, is_timed: bool) -> Sequence[int]:
    """Return the bytes of each push.

    InputError: a push, or the pushes of a timed task together, are too large for the log; names the largest part.
    """
    sizes = [push.message.ByteSize() + push.audience.ByteSize() for push in pushes]
    size = audit_bytes + (sum(sizes) if is_timed else max(sizes))
    if size <= MAX_PUSH_BYTES:
        return sizes
    largest = max(pushes, key=lambda push: push.message.ByteSize() + push.audience.ByteSize())
    message = largest.message
    parts = {
        "the content": len(message.content.encode()),
        "extra": len(message.extra.encode()),
        "click_param": len(message.android.click_param_json.encode()),
        "the audience": largest.audience.ByteSize(),
    }
    part = max(parts, key=parts.__getitem__)
    raise InputError(Code.PUSH_TOO_LARGE, size=size, most=MAX_PUSH_BYTES, part=part, part_size=parts[part])
