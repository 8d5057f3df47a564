"""The size of a page of the console: the bytes that a browser with an empty cache downloads to show it."""

import re

import httpx

_FILE = re.compile(r'(?:href|src)="(/static/[^"]+)"')


async def page_weight(http: httpx.AsyncClient, page: httpx.Response) -> int:
    """Return the bytes of the page and of each file that it names, as they are sent."""
    weight = page.num_bytes_downloaded
    for path in sorted(set(_FILE.findall(page.text))):
        file = await http.get(path)
        assert file.status_code == 200, path
        weight += file.num_bytes_downloaded
    return weight
