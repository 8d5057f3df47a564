"""The registry's settings."""

from services.runtime.process.settings import Settings

ROLE_NAME = "registry"


class RegistrySettings(Settings, frozen=True, kw_only=True):
    """The registry has no settings beyond those of every role."""
