"""The certificate that the door shows to devices, taken over again when its files change."""

import os
import ssl

from services.runtime.process.logs import logger


class Certificate:
    """A chain and its key in PEM files. `context` is for the next handshake. OSError: the files hold no such pair."""

    def __init__(self, chain: str, key: str) -> None:
        self._files = (chain, key)
        self._seen = _stamps(self._files)
        self.context = _context(chain, key)

    def renew(self) -> None:
        """Take over what the files hold now, if they have changed; while they do not fit, the old one stays."""
        stamps = _stamps(self._files)
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self.context = _context(*self._files)
        except OSError as error:
            logger.error("the devices' new certificate cannot be used; the old one stays", error=str(error))
        else:
            logger.info("the devices' certificate was renewed")


def _context(chain: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # With a password given, an encrypted key is refused; without, OpenSSL would ask for one at the terminal.
    context.load_cert_chain(chain, key, password="")
    return context


def _stamps(files: tuple[str, ...]) -> list[tuple[int, ...] | None]:
    return [_stamp(file) for file in files]


def _stamp(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
