"""The registry's settings."""

from typing import Annotated

import msgspec

from services.domain.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "registry"

MIN_DEVICE_DAYS = 90


class RegistrySettings(Settings, frozen=True, kw_only=True):
    """`device_days`: days of silence after which a device is removed until it shows life again; 0: none is.

    `seal_new`: a new installation seals personal values from its first record on, where it has a key for it.
    """

    device_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 270
    seal_new: bool = True

    def check(self) -> None:
        super().check()
        if 0 < self.device_days < MIN_DEVICE_DAYS:
            raise SettingsError(
                f"{PREFIX}DEVICE_DAYS is {self.device_days}: use {MIN_DEVICE_DAYS} or more, because a connection that"
                " lasts longer counts as silence, or 0 to keep silent devices"
            )
