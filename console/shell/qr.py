"""QR codes: as images of pages, and as lines of a terminal."""

import base64
import io

import segno

_BORDER = 3
"""Light modules around the code."""


def qr_image(text: str) -> str:
    """Return the QR code of a text as the address of an image, black on white in the dark appearance too.

    The image is the address itself (`data:`), which the Content-Security-Policy allows. Making it takes 10 ms.
    """
    image = io.BytesIO()
    segno.make(text, error="m").save(image, kind="svg", scale=4, border=_BORDER, light="white", dark="black")
    return "data:image/svg+xml;base64," + base64.b64encode(image.getvalue()).decode()


def qr_lines(text: str) -> list[str]:
    """Return the QR code of a text as lines of half blocks; the blocks are its light modules."""
    drawn = io.StringIO()
    segno.make(text, error="l").terminal(drawn, border=_BORDER, compact=True)
    return drawn.getvalue().splitlines()
