"""The names of the attributes of devices in the reader's language."""

from collections.abc import Callable, Mapping


def attribute_names(gettext: Callable[[str], str]) -> Mapping[str, str]:
    """Return the name of each field of protos.registry.v1.Attributes that audits and filters show."""
    _ = gettext
    return {
        "model": _("model"),
        "region": _("region"),
        "carrier": _("carrier"),
        "channel": _("channel"),
        "sdk_version": _("SDK version"),
        "brand": _("brand"),
        "resolution": _("resolution"),
        "os_version": _("OS version"),
        "app_version": _("app version"),
    }
