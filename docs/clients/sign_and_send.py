"""Sign a request and send it: python3 sign_and_send.py URL SECRET... < request.json"""

import hashlib
import json
import sys
import urllib.error
import urllib.request


def send(url, body, *secrets, method="POST"):
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    sign = hashlib.md5((text + "".join(secrets)).encode()).hexdigest()
    signed = f'{{"sign":"{sign}",{text[1:]}'.encode()
    request = urllib.request.Request(url, signed, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as refused:  # 403 and 429 are the HTTP status too
        return json.load(refused)


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], json.load(sys.stdin), *sys.argv[2:])))
