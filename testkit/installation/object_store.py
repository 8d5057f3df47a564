"""An S3-compatible store for tests: moto's server, in threads of the test's process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

from testkit import plain_http

BUCKET = "archive"
SECRET = "never-in-any-message"


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Run a store with an empty bucket; yield the environment of its clients."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        with plain_http.client(timeout=60) as http:
            http.post(f"{url}/moto-api/reset").raise_for_status()
            http.put(f"{url}/{BUCKET}").raise_for_status()
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
    finally:
        server.stop()
