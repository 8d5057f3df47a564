"""Answers about devices."""

from typing import Annotated

from edge.core.answers import Reply
from edge.core.parsing.fields import Success, Text, described


class InvalidTokensReply(Reply, frozen=True):
    result: Success
    desc: Text
    data: Annotated[dict[str, list[str]], described("Invalid tokens by appkey, newest first.")]
