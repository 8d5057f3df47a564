"""Runs decisions one after the other, and writes the facts that each returns to the three topics, with its origin."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from protos.accounts.v1.accounts_pb2 import AccountFact, LogInFact
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.accounts.decide import actor_of
from services.accounts.state import Envelope
from services.accounts.store import AccountTable
from services.domain import ids
from services.domain.permissions import Actor
from services.domain.topics import ACCOUNTS, DRAFTS, LOG_INS
from services.errors import UnavailableError
from services.process.clock import Clock
from services.replica.follower import Follower
from services.replica.store import Fact

Result = TypeVar("Result")
Written = TypeVar("Written", AccountFact, DraftFact)


class FactWriter:
    """Decides with the latest state, between two other decisions, and returns once the facts are durable."""

    def __init__(self, follower: Follower, accounts: AccountTable, clock: Clock) -> None:
        self._follower = follower
        self._accounts = accounts
        self._clock = clock

    async def write(
        self, decide: Callable[[AccountTable, int], tuple[Result, Sequence[Envelope]]], origin: Origin
    ) -> Result:
        """Call `decide` with the state and the time; write the facts that it returns beside its result."""
        if not self._follower.is_caught_up:
            raise UnavailableError("accounts is still reading the log; try again")
        results: list[Result] = []

        def choose() -> list[Fact]:
            now_ms = self._clock.now_ms()
            result, messages = decide(self._accounts, now_ms)
            results.append(result)
            return [_fact(message, now_ms, origin) for message in messages]

        await self._follower.write(choose)
        return results[-1]  # after a change of the tenure, `choose` was called again

    async def write_for(
        self, origin: Origin, decide: Callable[[AccountTable, Actor, int], Sequence[Written]]
    ) -> Sequence[Written]:
        """Write and return the facts that `decide` returns for the actor that the origin names."""

        def with_actor(accounts: AccountTable, now_ms: int) -> tuple[Sequence[Written], Sequence[Written]]:
            facts = decide(accounts, actor_of(accounts, origin, now_ms), now_ms)
            return facts, facts

        return await self.write(with_actor, origin)


def _fact(message: Envelope, now_ms: int, origin: Origin) -> Fact:
    message.meta.CopyFrom(Meta(event_id=ids.event_id(), time_ms=now_ms, origin=origin))
    match message:
        case AccountFact():
            return Fact(ACCOUNTS, 0, _account_key(message).encode(), message)
        case LogInFact():
            return Fact(LOG_INS, 0, _log_in_key(message).encode(), message)
        case DraftFact():
            return Fact(DRAFTS, 0, (message.draft_id or message.admitted.sender).encode(), message)


def _account_key(fact: AccountFact) -> str:
    by_kind = {
        "user": f"user/{fact.user.user.user_id}",
        "team": f"team/{fact.team.team.team_id}",
        "app": f"app/{fact.app.appkey}",
        "link": f"user/{fact.link.user_id}",
        "token": f"token/{fact.token.token.token_id}",
        "token_revoked": f"token/{fact.token_revoked.token_id}",
        "session_ended": f"user/{fact.session_ended.user_id}",
        "change_proposed": f"change/{fact.change_proposed.change.change_id}",
        "change_decided": f"change/{fact.change_decided.change_id}",
        "erasure_sent": f"change/{fact.erasure_sent.change_id}",
    }
    return by_kind[fact.WhichOneof("fact") or ""]


def _log_in_key(fact: LogInFact) -> str:
    if fact.HasField("token_used"):
        return f"token/{fact.token_used.token_id}"
    if fact.HasField("data_read"):
        return fact.meta.origin.actor
    user_id = fact.logged_in.user_id or fact.failed.user_id
    return f"user/{user_id}" if user_id else ""
