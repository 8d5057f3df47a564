"""Webhooks' settings."""

from services.domain.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "webhooks"


class WebhooksSettings(Settings, frozen=True, kw_only=True):
    """Webhooks has no settings beyond those of every role, and one instance alone."""

    def check(self) -> None:
        super().check()
        if self.shards != 1:
            raise SettingsError(
                f"{PREFIX}SHARDS is {self.shards}, but webhooks has one instance: leave it unset for this role"
            )
