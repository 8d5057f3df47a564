"""Divides the limit of open files of a process among its uses, so that no use starves another."""

import resource

import msgspec

from services.runtime.process.logs import logger

_UNLIMITED_FILES = 2**20
_MAX_RESERVED = 512
_MAX_HTTP = 1024
_MAX_PENDING = 4096


class FileShares(msgspec.Struct, frozen=True):
    """The number of open files that each use may have.

    `reserved`: the log, states, calls between roles and the operations endpoint. `http`: connections of app servers.
    `pending`: devices' sockets that are not welcomed yet, or closing. `devices`: connections of welcomed devices.
    """

    reserved: int
    http: int
    pending: int
    devices: int


def file_shares(open_files: int, http: int | None = None) -> FileShares:
    """Return the shares of a process that may open `open_files` files; `http` replaces that share's default."""
    reserved = min(_MAX_RESERVED, open_files // 8)
    pending = min(_MAX_PENDING, open_files // 4)
    http = min(_MAX_HTTP, open_files // 8) if http is None else http
    return FileShares(reserved, http, pending, max(0, open_files - reserved - pending - http))


def hard_file_limit() -> int:
    """Return how many files the host lets this process open."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED_FILES if hard == resource.RLIM_INFINITY else hard


def raise_file_limit() -> int:
    """Raise this process's limit of open files to the hard one; return it."""
    files = hard_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        logger.info("the limit of open files was raised", was=soft, now=files)
    return files
