"""Answers of the legacy Android interface."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from edge.android.requests import AndroidPushOrder
from edge.core.answers import TOKEN_NOT_FOUND, Reply
from edge.core.parsing.fields import Count, MessageId, Shown, Success, Text, described
from edge.core.push import AppPush, PushResult
from protos.analytics.v1.analytics_pb2 import ListAcksResponse
from protos.push.v1.push_pb2 import KIND_UNICAST


class AndroidTokenOutcome(Reply, frozen=True):
    """The outcome of one entry of the token list."""

    msgid: Annotated[MessageId, described("This entry's own message id.")]
    pos: Annotated[Count, described("Position in the list, from 0.")]
    token: Annotated[str, described("The token.")]
    result: Annotated[Literal[0, 401], described("0, or 401 when the token is unknown.")]
    desc: Text


class AliasOutcome(Reply, frozen=True):
    """The outcome of one alias."""

    alias: Annotated[str, described("The alias.")]
    succ_num: Annotated[Count, described("Number of devices that it is sent to.")]
    fail_num: Annotated[Count, described("1 when the alias has no device.")]


class AndroidPushed(Reply, frozen=True):
    result: Success
    desc: Text
    msgid: Annotated[MessageId | UnsetType, described("The message id; for a list of tokens, details has the ids.")] = (
        UNSET
    )
    details: Annotated[
        list[Annotated[Any, Shown(AndroidTokenOutcome, AliasOutcome)]] | UnsetType,
        described("An entry for each token, then one for each alias."),
    ] = UNSET


class Timed(Reply, frozen=True):
    result: Success
    desc: Text
    task_key: Annotated[str, described("The key of the timed push.")]


class AckEntry(Reply, frozen=True):
    msgid: Annotated[MessageId, described("The message.")]
    token: Annotated[str, described("The device that received it.")]
    channel: Annotated[
        str | UnsetType,
        described("The channel, such as webpush, that the message was handed over to; absent for own connections."),
    ] = UNSET


class Acks(Reply, frozen=True):
    result: Success
    desc: Text
    ack_info_list: Annotated[
        list[AckEntry], described("Received messages, from 15 minutes after receipt and for two days.")
    ]
    has_more: Annotated[bool, described("false: wait about 30 seconds before the next request.")]
    pos: Annotated[str, described("The position to continue at in the next request.")]


def push_reply(order: AndroidPushOrder, results: Sequence[PushResult]) -> AndroidPushed:
    """Answer a broadcast or multicast with its id, a unicast with an entry for each token, then one for each alias.

    `msgid` is at the top also for aliases, whose entries have none, and for a single token that is known.
    """
    msgid: int | UnsetType = UNSET
    details: list[AndroidTokenOutcome | AliasOutcome] = []
    for push, result in zip(order.pushes, results, strict=True):
        by_token = push.audience.HasField("tokens")
        if push.kind == KIND_UNICAST:
            details += _by_token(push, result) if by_token else _by_alias(push, result)
        if not by_token or (order.is_single_token and not result.unknown_tokens):
            msgid = result.msgid
    return AndroidPushed(result=0, desc="send ok", msgid=msgid, details=details or UNSET)


def acks_reply(page: ListAcksResponse) -> Acks:
    acks = [AckEntry(msgid=ack.msgid, token=ack.token, channel=ack.channel or UNSET) for ack in page.acks]
    return Acks(result=0, desc="ok", ack_info_list=acks, has_more=page.has_more, pos=page.pos)


def _by_token(push: AppPush, result: PushResult) -> list[AndroidTokenOutcome]:
    unknown = set(result.unknown_tokens)
    return [
        AndroidTokenOutcome(
            msgid=result.msgid + pos,
            pos=pos,
            token=token,
            result=401 if pos in unknown else 0,
            desc=TOKEN_NOT_FOUND if pos in unknown else "send ok",
        )
        for pos, token in enumerate(push.audience.tokens.tokens)
    ]


def _by_alias(push: AppPush, result: PushResult) -> list[AliasOutcome]:
    return [
        AliasOutcome(alias=alias, succ_num=count, fail_num=0 if count else 1)
        for alias, count in zip(push.audience.aliases.aliases, result.devices_by_alias, strict=True)
    ]
