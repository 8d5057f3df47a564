"""The app server's side of proofs: keys, and proofs of aliases and identity tags, made by joserfc."""

import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey

HOUR_S = 3600


class ProofKey:
    """A key pair of an app's server: EC P-256, or with `ed25519` an Ed25519 one."""

    def __init__(self, *, ed25519: bool = False) -> None:
        made = Ed25519PrivateKey.generate() if ed25519 else ec.generate_private_key(ec.SECP256R1())
        self.algorithm = "Ed25519" if ed25519 else "ES256"
        self.private_pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        public = made.public_key()
        self.public_pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        self._key = OKPKey.import_key(self.private_pem) if ed25519 else ECKey.import_key(self.private_pem)

    def signed(self, claims: dict[str, Any], **header: Any) -> str:
        """Return a JWT with exactly these claims."""
        return jwt.encode(
            {"alg": self.algorithm, **header}, claims, self._key, algorithms=[self.algorithm], default_type=None
        )

    def proof(self, appkey: str, alias: str | None = None, *, now_s: float | None = None, **claims: Any) -> str:
        """Return a proof for an hour from `now_s` (default: the machine's time); claims that are None are left out."""
        now_s = time.time() if now_s is None else now_s
        made = {"sub": alias, "aud": appkey, "iat": int(now_s), "exp": int(now_s) + HOUR_S, **claims}
        return self.signed({name: value for name, value in made.items() if value is not None})
