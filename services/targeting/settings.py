"""Targeting's settings."""

from services.domain.settings import Settings

ROLE_NAME = "targeting"


class TargetingSettings(Settings, frozen=True, kw_only=True):
    """Targeting has no settings beyond those of every role."""
