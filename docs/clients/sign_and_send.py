"""Sign a request and send it: python3 sign_and_send.py URL SECRET... < request.json"""

import hashlib
import hmac
import json
import secrets as random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def send(url, body, *secrets, method="POST"):
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    sign = hashlib.md5((text + "".join(secrets)).encode()).hexdigest()
    signed = f'{{"sign":"{sign}",{text[1:]}'.encode()
    headers = {"Content-Type": "application/json", **replay_safe(method, url, signed, secrets)}
    request = urllib.request.Request(url, signed, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as refused:  # 403 and 429 are the HTTP status too
        return json.load(refused)


def replay_safe(method, url, body, secrets):
    """The headers by which nobody can send the request again."""
    now, nonce = str(int(time.time())), random.token_urlsafe(24)
    text = "\n".join([method, urllib.parse.urlsplit(url).path, now, nonce, hashlib.sha256(body).hexdigest()])
    signature = hmac.new("".join(secrets).encode(), text.encode(), "sha256").hexdigest()
    return {"Carillon-Time": now, "Carillon-Nonce": nonce, "Carillon-Signature": signature}


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], json.load(sys.stdin), *sys.argv[2:])))
