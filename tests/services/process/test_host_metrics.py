"""Disk space and the expiry of certificates are looked up anew at each scrape."""

import shutil
from math import isnan
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate
from prometheus_client import REGISTRY

from services.process.metrics import export_disk_space, export_expiry
from testkit.certificates import Authority


def test_disk_space_is_that_of_the_data_directory(tmp_path: Path) -> None:
    export_disk_space(tmp_path / "data")
    assert isnan(REGISTRY.get_sample_value("carillon_data_free_bytes") or 0)
    (tmp_path / "data").mkdir()
    assert REGISTRY.get_sample_value("carillon_data_size_bytes") == shutil.disk_usage(tmp_path).total
    free = REGISTRY.get_sample_value("carillon_data_free_bytes")
    assert free
    assert 0 < free <= shutil.disk_usage(tmp_path).total


def test_the_expiry_is_that_of_the_certificate_in_the_file_now(tmp_path: Path) -> None:
    def expiry() -> float | None:
        return REGISTRY.get_sample_value("carillon_certificate_expires_seconds", {"setting": "CARILLON_TLS_CERT"})

    export_expiry("CARILLON_NO_CERT", None)
    assert REGISTRY.get_sample_value("carillon_certificate_expires_seconds", {"setting": "CARILLON_NO_CERT"}) is None
    file = tmp_path / "cert.pem"
    export_expiry("CARILLON_TLS_CERT", str(file))
    assert isnan(expiry() or 0)
    file.write_text("half a certificate")
    assert isnan(expiry() or 0)
    issued = Authority(tmp_path / "tls").issue("registry").certificate.read_bytes()
    file.write_bytes(issued)
    assert expiry() == load_pem_x509_certificate(issued).not_valid_after_utc.timestamp()
