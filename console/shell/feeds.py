"""Feeds: answers that are asked for again every few seconds while open pages show them, once for all their readers."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import falcon

from services.errors import BusyError, CarillonError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger

STREAMS_OF_A_USER = 12
"""Open streams of one user; another one ends the oldest."""

Ask = Callable[[], Awaitable[Any]]


class FeedQuestion(NamedTuple):
    """The question of a feed, asked every `seconds`; questions with the same `key` are the same."""

    key: Hashable
    ask: Ask
    seconds: float


class Feed:
    """The latest answer to a question. `number` counts the changes of `answer` and `is_late`."""

    def __init__(self, question: FeedQuestion, clock: Clock) -> None:
        self.answer: Any = None
        self.number = 0
        self.is_late = False
        """Whether the latest attempt was not answered, so that `answer` is an older one."""

        self.followers = 0
        self._texts: dict[Hashable, asyncio.Task[str]] = {}
        self._question = question
        self._clock = clock
        self._changed = asyncio.Event()
        self.asking = background.start("live pages", self._ask_again_and_again())

    @property
    def change(self) -> asyncio.Event:
        """An event that the next change sets. Get it before reading `number`, then wait for it."""
        return self._changed

    async def text(self, key: Hashable, render: Callable[[Any], Awaitable[str]]) -> str:
        """Return what `render` makes of the answer: once for all that ask with the same key."""
        rendering = self._texts.get(key)
        if rendering is None:
            rendering = self._texts[key] = asyncio.ensure_future(render(self.answer))
        # Shielded: a page that closes must not cancel the rendering for the others.
        return await asyncio.shield(rendering)

    async def _ask_again_and_again(self) -> None:
        while True:
            try:
                answer, is_late = await self._question.ask(), False
            except Exception as error:
                if not isinstance(error, (CarillonError, falcon.HTTPError)):
                    logger.error("a live page cannot be filled", exc_info=error)
                answer, is_late = self.answer, True
            if not self.number or answer != self.answer or is_late != self.is_late:
                self.answer, self.is_late = answer, is_late
                self._texts = {}
                self.number += 1
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await self._clock.sleep_until(self._clock.now_ms() + round(self._question.seconds * 1000))


class PageStream:
    """One open page. `ending`: set when it shall end at once; `is_replaced`: a newer stream of the user ended it."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.is_replaced = False


class Feeds:
    """Service that keeps the feeds of all open pages, and ends their streams when the process stops."""

    name = "live pages"

    def __init__(self, clock: Clock, most_streams: int) -> None:
        self._clock = clock
        self._most_streams = most_streams
        self._feeds: dict[Hashable, Feed] = {}
        self._streams: dict[PageStream, str] = {}
        self._is_stopping = False

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._is_stopping = True
            for stream in self._streams:
                stream.ending.set()
            for feed in self._feeds.values():
                feed.asking.cancel()

    def check_free(self) -> None:
        """Check whether another stream may be opened. BusyError: there are too many, or the process stops."""
        if self._is_stopping or len(self._streams) >= self._most_streams:
            raise BusyError("too many pages are open")

    @contextmanager
    def stream(self, user_id: str) -> Iterator[PageStream]:
        """Count a stream of this user as long as the `with` lasts; the oldest one ends if the user has too many."""
        own = [stream for stream, of in self._streams.items() if of == user_id]
        if len(own) >= STREAMS_OF_A_USER:
            own[0].is_replaced = True
            own[0].ending.set()
            del self._streams[own[0]]
        stream = PageStream()
        self._streams[stream] = user_id
        try:
            yield stream
        finally:
            self._streams.pop(stream, None)

    @contextmanager
    def follow(self, questions: list[FeedQuestion]) -> Iterator[list[Feed]]:
        """Ask these questions again and again while the `with` lasts; followers of the same question share it."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._followed(question)) for question in questions]

    @contextmanager
    def _followed(self, question: FeedQuestion) -> Iterator[Feed]:
        feed = self._feeds.get(question.key)
        if feed is None:
            feed = self._feeds[question.key] = Feed(question, self._clock)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                del self._feeds[question.key]
                feed.asking.cancel()
