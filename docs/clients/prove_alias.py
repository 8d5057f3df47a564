"""Prove who is on a device: python3 prove_alias.py PRIVATE.pem APPKEY ALIAS [TOKEN] (needs the package cryptography)"""

import base64
import json
import sys
import time

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key


def encoded(part):
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def prove(pem, appkey, alias, token=None, seconds=3600):
    """Return a proof for the user who has logged in. Call it only with the alias of this user."""
    now = int(time.time())
    claims = {"sub": alias, "aud": appkey, "iat": now, "exp": now + seconds}
    if token is not None:
        claims["token"] = token
    text = encoded(json.dumps({"alg": "ES256"}).encode()) + b"." + encoded(json.dumps(claims).encode())
    r, s = decode_dss_signature(load_pem_private_key(pem, None).sign(text, ECDSA(hashes.SHA256())))
    return (text + b"." + encoded(r.to_bytes(32, "big") + s.to_bytes(32, "big"))).decode()


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        print(prove(file.read(), *sys.argv[2:]))
