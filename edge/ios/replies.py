"""Answers of the legacy iOS interface."""

from typing import Annotated, Literal

from edge.core.answers import TOKEN_NOT_FOUND, Reply
from edge.core.parsing.fields import MessageId, Success, Text, described
from edge.core.push import PushResult


class Pushed(Reply, frozen=True):
    result: Success
    desc: Text
    msgid: Annotated[MessageId, described("The message id; for a list of tokens, that of its first entry.")]


class NotPushed(Reply, frozen=True):
    """The only token that was named is unknown."""

    result: Annotated[Literal[401], described("Always 401.")]
    desc: Annotated[str, described(TOKEN_NOT_FOUND)]


def push_reply(result: PushResult) -> Pushed | NotPushed:
    """Answer with the message id, or with an error when the only token that was named is unknown."""
    if not result.msgid:
        return NotPushed(result=401, desc=TOKEN_NOT_FOUND)
    return Pushed(result=0, desc="send ok", msgid=result.msgid)
