"""App look-ups from a follower's thread."""

import asyncio

from protos.registry.v1.apps_pb2 import App
from services.domain.apps import OUTDATED, AppDirectory
from services.runtime.errors import UnavailableError

_REFRESH_S = 3.0
_MAX_UNANSWERED = 5


class AppLookup:
    """Finds apps for a follower's thread. For an unknown app it refreshes the directory first: the app may be new."""

    def __init__(self, apps: AppDirectory) -> None:
        self._apps = apps
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_running_loop(self) -> None:
        """Refresh in the event loop that is running now; without a loop `find` never refreshes."""
        self._loop = asyncio.get_running_loop()

    def find(self, appkey: str) -> App | None:
        """Return the app; None only if the log holds none, so it waits while the log does not answer.

        UnavailableError: the event loop runs nothing for 15 s, because it waits for this thread to end.
        """
        unanswered = 0
        while (app := self._apps.get(appkey)) is None and self._loop is not None:
            try:
                is_current = asyncio.run_coroutine_threadsafe(self._apps.refresh(), self._loop).result(_REFRESH_S)
            except TimeoutError:
                is_current, unanswered = False, unanswered + 1
                if unanswered >= _MAX_UNANSWERED:
                    raise UnavailableError(OUTDATED) from None
            if is_current:
                return self._apps.get(appkey)
        return app
