"""App look-ups from a follower's thread."""

import asyncio
import contextlib

from protos.registry.v1.apps_pb2 import App
from services.domain.apps import AppDirectory

_REFRESH_S = 3.0


class AppLookup:
    """Finds apps for a follower's thread. For an unknown app it refreshes the directory once: the app may be new."""

    def __init__(self, apps: AppDirectory) -> None:
        self._apps = apps
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_running_loop(self) -> None:
        """Refresh in the event loop that is running now; without a loop `find` never refreshes."""
        self._loop = asyncio.get_running_loop()

    def find(self, appkey: str) -> App | None:
        app = self._apps.get(appkey)
        if app is None and self._loop is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._apps.refresh(), self._loop).result(_REFRESH_S)
            app = self._apps.get(appkey)
        return app
