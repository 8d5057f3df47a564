"""Renders and compresses pages in slices, after their values are known, so that no other work waits for long."""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from falcon.asgi import Request, Response

from edge.console.access_control.visit import Visit
from edge.console.view.renderer import Renderer, View

SLICE_S = 0.00025
"""Time for which a page is rendered before it pauses: other work waits that long at most."""

PAUSE_S = 0.0005
"""The pause, so that other work gets two thirds of the time."""

MIN_GZIP_BYTES = 1000
GZIP_LEVEL = 4


class Template(NamedTuple):
    """A template and its values, which `response.context.page` holds until the page is rendered."""

    name: str
    values: Mapping[str, Any]

    @classmethod
    def shown_now(cls, name: str, visit: Visit, values: Mapping[str, Any]) -> "Template":
        """Return a template that also shows the notice and the secret that the page before has left."""
        notice, shown_once = ("", "") if visit.is_fragment else visit.take_notice()
        return cls(name, {**values, "notice": notice, "shown_once": shown_once})


class SlicedRenderer:
    """Renders in slices with pauses, one page at a time."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._turn = asyncio.Lock()

    async def render(self, template: str, visit: View, values: Mapping[str, Any]) -> str:
        """Return the text of the template."""
        async with self._turn:
            parts = []
            ends = time.perf_counter() + SLICE_S
            for part in self._renderer.parts(template, visit, values):
                parts.append(part)
                if time.perf_counter() >= ends:
                    await asyncio.sleep(PAUSE_S)
                    ends = time.perf_counter() + SLICE_S
            return "".join(parts)


class Rendering:
    """Falcon middleware that renders the page of an answer."""

    def __init__(
        self, renderer: SlicedRenderer, of_fault: Callable[[Request, Response, Exception], Awaitable[None]]
    ) -> None:
        """`of_fault` puts the page for an error in the place of one that cannot be rendered."""
        self._renderer = renderer
        self._of_fault = of_fault

    async def process_response(self, request: Request, response: Response, resource: Any, succeeded: bool) -> None:
        if getattr(response.context, "page", None) is None:
            return
        try:
            text = await self._rendered(response.context.page, request.context.visit)
        except Exception as error:
            await self._of_fault(request, response, error)
            text = await self._rendered(response.context.page, request.context.visit)
        if "gzip" in (request.get_header("Accept-Encoding") or "") and len(text) >= MIN_GZIP_BYTES:
            response.set_header("Content-Encoding", "gzip")
            response.data = await asyncio.to_thread(gzip.compress, text, GZIP_LEVEL, mtime=0)
        else:
            response.data = text
        response.append_header("Vary", "Accept-Encoding")

    async def _rendered(self, page: Template, visit: Visit) -> bytes:
        return (await self._renderer.render(page.name, visit, page.values)).encode()
