"""Accepting while the process has no file left: it pauses, and goes on afterwards."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from services.net.sockets import AcceptLoop, file_shares

WAITING = 20


class CountingListener(socket.socket):
    """A listener that counts the calls of accept."""

    calls = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        return super().accept()


@contextmanager
def no_more_files_than(count: int) -> Iterator[None]:
    """Let this process open at most `count` further files, while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def listening() -> Iterator[tuple[CountingListener, list[socket.socket]]]:
    """Yield a listener, and clients whose connections wait to be accepted."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as bound:
        listener = CountingListener(fileno=bound.detach())
    listener.setblocking(False)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(WAITING)]
    try:
        yield listener, clients
    finally:
        for each in [*clients, listener]:
            each.close()


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_pauses_without_spinning_and_accepts_all_afterwards() -> None:
    accepted: list[socket.socket] = []
    paused: list[Callable[[], None]] = []
    loop = AcceptLoop("test", lambda each, _: accepted.append(each), later=paused.append)
    with listening() as (listener, _):
        with no_more_files_than(5):
            loop.open(listener)
            await turns()
            calls = listener.calls
            assert calls <= 6
            assert len(paused) == 1
            for _ in range(3):
                paused.pop()()
                await turns()
                assert len(paused) == 1
            assert listener.calls == calls + 3
        paused.pop()()
        await turns()
        assert len(accepted) == WAITING
        assert not paused
        loop.close()
    for each in accepted:
        each.close()


async def test_spare_files_serve_while_the_process_has_no_other() -> None:
    accepted: list[socket.socket] = []
    loop = AcceptLoop("test", lambda each, _: accepted.append(each), spare_files=4, later=lambda again: None)
    with listening() as (listener, _):
        loop.open(listener)
        with no_more_files_than(0):
            await turns()
        assert len(accepted) == 4
        loop.close()
    for each in accepted:
        each.close()


async def test_a_closed_loop_does_not_resume() -> None:
    paused: list[Callable[[], None]] = []
    loop = AcceptLoop("test", lambda each, _: each.close(), later=paused.append)
    with listening() as (listener, _):
        with no_more_files_than(0):
            loop.open(listener)
            await turns()
        loop.close()
        calls = listener.calls
        paused.pop()()
        await turns()
        assert listener.calls == calls


@pytest.mark.parametrize("files", [64, 256, 1024, 20_000, 2**20])
def test_the_shares_of_all_uses_together_are_the_limit(files: int) -> None:
    shares = file_shares(files)
    assert shares.reserved + shares.http + shares.pending + shares.devices == files
    assert min(shares.reserved, shares.http, shares.pending, shares.devices) >= files // 8 or files > 1024
    assert file_shares(files, 5).http == 5
