"""The settings of accounts."""

from services.domain.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "accounts"


class AccountsSettings(Settings, frozen=True, kw_only=True):
    """Accounts has no settings beyond those of every role, and one instance alone."""

    def check(self) -> None:
        super().check()
        if self.shards != 1:
            raise SettingsError(
                f"{PREFIX}SHARDS is {self.shards}, but accounts has one instance: leave it unset for this role"
            )
