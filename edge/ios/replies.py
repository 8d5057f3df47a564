"""Answers of the legacy iOS interface."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from edge.core.answers import TOKEN_NOT_FOUND, FailedToken, Reply, failed_token
from edge.core.parsing.fields import MessageId, Success, Text, described
from edge.core.push import AppPush, PushResult


class IosPushed(Reply, frozen=True):
    result: Success
    desc: Text
    msgid: Annotated[MessageId, described("The message id; for a list of tokens, that of its first entry.")]
    details: Annotated[
        list[FailedToken] | UnsetType, described("Tokens of a list that failed, where there are any.")
    ] = UNSET


class NotPushed(Reply, frozen=True):
    """The only token that was named is unknown."""

    result: Annotated[Literal[401], described("Always 401.")]
    desc: Annotated[str, described(TOKEN_NOT_FOUND)]


def push_reply(pushes: Sequence[AppPush], results: Sequence[PushResult]) -> IosPushed | NotPushed:
    """Answer with the message id, or with an error when the only token that was named is unknown.

    A list of tokens may be several pushes; positions are counted over all of them.
    """
    if not results[0].msgid:
        return NotPushed(result=401, desc=TOKEN_NOT_FOUND)
    failed, before = list[FailedToken](), 0
    for push, result in zip(pushes, results, strict=True):
        tokens = push.audience.tokens.tokens
        failed += [failed_token(result.msgid + at, before + at, tokens[at]) for at in result.unknown_tokens]
        before += len(tokens)
    return IosPushed(result=0, desc="send ok", msgid=results[0].msgid, details=failed or UNSET)
