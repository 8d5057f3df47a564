"""Metrics of the host, read at each scrape: disk space, and the expiry of the certificates in use."""

import shutil
from math import nan
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

from services.runtime.process.metrics import CERTIFICATE_EXPIRES, DATA_FREE, DATA_SIZE


def export_disk_space(directory: Path) -> None:
    """Export the size and the free bytes of the disk of this directory; NaN while the directory cannot be read."""
    DATA_SIZE.set_function(lambda: _size_and_free(directory)[0])
    DATA_FREE.set_function(lambda: _size_and_free(directory)[1])


def export_expiry(setting: str, file: str | None) -> None:
    """Export when the first certificate of the setting's PEM file expires; NaN while there is none. None: no file."""

    def expires_s() -> float:
        try:
            return load_pem_x509_certificate(Path(str(file)).read_bytes()).not_valid_after_utc.timestamp()
        except (OSError, ValueError):
            return nan

    if file is not None:
        CERTIFICATE_EXPIRES.labels(setting).set_function(expires_s)


def _size_and_free(directory: Path) -> tuple[float, float]:
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return nan, nan
    return usage.total, usage.free
