"""Scheduling's settings."""

from services.domain.settings import Settings

ROLE_NAME = "scheduling"


class SchedulingSettings(Settings, frozen=True, kw_only=True):
    """Scheduling has no settings beyond those of every role."""
