"""A push whose repetition was refused may be in the log only where its first request was still under way then."""

from types import SimpleNamespace
from typing import cast

import pytest

from protos.push.v1.push_pb2 import Message, SendPush
from tests.soak.checks import Observations, commands
from tests.soak.history import History, LoggedPush
from tests.soak.ledger import LONG_S, Ledger, Outcome, Push

_APPKEY = "1000000001"


@pytest.mark.parametrize(
    ("is_repeated", "task_ms", "msgids", "is_found"),
    [(True, 2001, [7], False), (True, 1999, [7], True), (False, 2001, [7], True), (True, 2001, [7, 8], True)],
)
def test_a_refused_push_in_the_log_is_found(is_repeated: bool, task_ms: int, msgids: list[int], is_found: bool) -> None:
    ledger = Ledger(lambda event: None)
    push = Push(1, "ios token", (_APPKEY,), lambda state: True, LONG_S, 0, is_repeated=is_repeated)
    push.outcome, push.begun_ms, push.answered_ms = Outcome.REFUSED, 1000, 2000
    ledger.pushes.append(push)
    sends = [SendPush(msgid=each, appkey=_APPKEY, message=Message(content=push.content)) for each in msgids]
    history = SimpleNamespace(
        sent={send.msgid: LoggedPush(send, 0, task_ms, b"") for send in sends}, tasks_ms=dict.fromkeys(msgids, task_ms)
    )
    found = list(commands(Observations(ledger, cast(History, history), {})))
    assert [violation.msgids for violation in found] == ([tuple(msgids)] if is_found else [])
