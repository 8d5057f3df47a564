"""The account behind one request, whether a page or a call is asked for."""

from dataclasses import dataclass

from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts.directory import AccountDirectory
from services.domain.accounts.permissions import Action, Actor, may


@dataclass(kw_only=True)
class Requester:
    """The actor of a request with what it may do, and the origin that its changes carry in the log."""

    actor: Actor
    origin: Origin
    accounts: AccountDirectory

    def may(self, action: Action, team_id: str = "") -> bool:
        return may(self.actor, action, team_id)

    def may_app(self, action: Action, appkey: str) -> bool:
        """Return whether the actor may do this with an app."""
        return may(self.actor, action, self.accounts.team_of(appkey))
