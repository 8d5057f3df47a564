"""A certificate authority for tests, and the certificates that it signs."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.runtime.rpc.caller import ROLE_URI
from services.runtime.rpc.tls import Tls

_DAY = datetime.timedelta(days=1)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=False,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates for 127.0.0.1, and writes all as PEM files into a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority {directory.name}")
        certificate = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        # Python 3.13 and newer refuse an authority that does not say what its key is for.
        certificate = certificate.add_extension(_SIGNS_CERTIFICATES, critical=True)
        self.file = self._written("authority.pem", certificate.sign(self._key, hashes.SHA256()))

    def issue(self, who: str, *roles: str) -> Tls:
        """Issue a certificate whose common name is `who`, for these roles, or for the role `who` if none is named."""
        key = ec.generate_private_key(ec.SECP256R1())
        uris = [x509.UniformResourceIdentifier(ROLE_URI + role) for role in roles or (who,)]
        names = [x509.IPAddress(ip_address("127.0.0.1")), *uris]
        certificate = _builder(_name(who), self._name, key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = certificate.add_extension(issuer, critical=False)
        file = self._written(f"{who}.pem", certificate.sign(self._key, hashes.SHA256()))
        key_file = self._directory / f"{who}.key"
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Tls(file, key_file, self.file)

    def _written(self, name: str, certificate: x509.Certificate) -> Path:
        file = self._directory / name
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return file


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
