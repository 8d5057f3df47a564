"""The legacy interface with registry, targeting, scheduling and delivery roles behind it."""

from tests.edge.legacy_roles import android_app, installation, ios_app, legacy

__all__ = ["android_app", "installation", "ios_app", "legacy"]
