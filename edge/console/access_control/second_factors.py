"""Which users must have a second factor, and have none yet."""

from typing import Literal, TypeAlias

from protos.accounts.v1.accounts_pb2 import User
from services.domain.accounts.directory import AccountDirectory

Demand: TypeAlias = Literal["nobody", "administrators", "everyone"]
"""The users of whom a second factor is demanded. `administrators` are those of the installation."""


class SecondFactors:
    """Says who must set up one-time codes before anything else. Users of an OpenID Connect provider need none here."""

    def __init__(self, accounts: AccountDirectory, demand: Demand) -> None:
        self._accounts = accounts
        self._demand = demand

    def must_enrol(self, user: User) -> bool:
        if self._demand == "nobody" or user.HasField("subject"):
            return False
        is_demanded = self._demand == "everyone" or user.administrator
        return is_demanded and not self._accounts.has_second_factor(user.user_id)
