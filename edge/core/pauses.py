"""Refuses new pushes of paused apps; all other requests of their app servers are served."""

from collections.abc import Iterable

from services.domain.apps import OUTDATED, AppDirectory
from services.runtime.errors import ForbiddenError, UnavailableError


async def check_not_paused(apps: AppDirectory, appkeys: Iterable[str]) -> None:
    """Check that none of the apps is paused. ForbiddenError: one is, also after a refresh of the app directory.

    UnavailableError: the refresh failed, so the pause may have ended. The answer does not contain the operator's
    reason: whoever signs with a stolen secret would read it.
    """
    named = list(appkeys)
    if any(map(apps.is_paused, named)):
        is_current = await apps.refresh()
        for appkey in named:
            if apps.is_paused(appkey):
                refusal = ForbiddenError(f"app {appkey} is paused by the operator; nothing was sent")
                raise refusal if is_current else UnavailableError(OUTDATED)
