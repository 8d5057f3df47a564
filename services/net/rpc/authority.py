"""The certificate authority of an installation: it signs the certificates that roles and operators show in calls."""

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.net.rpc.caller import ROLE_URI

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Validity:
    """The time from `begins` to `ends`, in which a certificate is valid."""

    begins: datetime.datetime
    ends: datetime.datetime


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority: its certificate, signed by its own key."""

    certificate: x509.Certificate
    key: Key

    @classmethod
    def create(cls, name: str, key: Key, validity: Validity) -> "Authority":
        """Return an authority with this key; one with the same name and key can replace one that expires."""
        subject = _name(name)
        builder = (
            _builder(subject, subject, key.public_key(), validity)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            # Python 3.13 and newer refuse an authority that does not say what its key is for.
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self,
        who: str,
        roles: Collection[str],
        hosts: Collection[str],
        key: ec.EllipticCurvePublicKey,
        validity: Validity,
    ) -> x509.Certificate:
        """Return a certificate with the common name `who` for these roles, at these host names and addresses.

        It ends with the authority's own certificate at the latest.
        """
        own_end = self.certificate.not_valid_after_utc
        validity = Validity(validity.begins, min(validity.ends, own_end))
        uris = [x509.UniformResourceIdentifier(ROLE_URI + role) for role in roles]
        return (
            _builder(_name(who), self.certificate.subject, key, validity)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([*map(_host, hosts), *uris]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Return whether the certificate is signed with this authority's key."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (InvalidSignature, TypeError, ValueError):
            return False
        return True


def new_key() -> Key:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses of a certificate, sorted."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return sorted([*names.get_values_for_type(x509.DNSName), *map(str, addresses)])


def canonical_host(host: str) -> str:
    """Return an IP address in the form in which `hosts_of` returns it; a host name as it is."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begins)
        .not_valid_after(validity.ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others: dict[str, Any] = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(key_cert_sign=signs_certificates, digital_signature=not signs_certificates, **others)
