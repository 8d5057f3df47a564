"""Settings of delivery with which it asks no vendor's push service and starts no simulator of one."""

from typing import Any

import msgspec

from services.delivery.settings import DeliverySettings
from services.domain.settings import Settings

NOWHERE = "https://127.0.0.1:1"
"""An address where nothing listens."""

NO_VENDORS: dict[str, str] = {
    field.name: NOWHERE
    for field in msgspec.structs.fields(DeliverySettings)
    if field.name not in Settings.__struct_fields__ and field.name.endswith("_url") and field.default is None
}
"""The base URL of every vendor's push service, so that no simulator takes its place."""


def settings_without_vendors(**settings: Any) -> DeliverySettings:
    """Return these settings; the push services that they do not name are nowhere."""
    return DeliverySettings(**{**NO_VENDORS, **settings})
