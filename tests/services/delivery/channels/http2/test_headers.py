"""HPACK literals, and the reader of :status and retry-after, against the hpack package."""

import hpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.delivery.channels.http2.headers import HeaderError, HeadReader, literal
from testkit.examples import examples

header_lists = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([":status", "apns-id", "content-type", "date", "retry-after", "x-new"]),
            st.sampled_from(["200", "410", "503"]) | st.text("abcdef0123-", max_size=140),
        ),
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(300))
@given(header_lists, st.sampled_from([0, 64, 4096]), st.booleans(), st.booleans())
@example([[], [("retry-after", "200"), ("retry-after", "")]], 0, False, False)  # the static table has the empty one
def test_statuses_equal_those_that_hpack_decodes(
    lists: list[list[tuple[str, str]]], table_bytes: int, huffman: bool, sensitive: bool
) -> None:
    encoder, decoder, reader = hpack.Encoder(), hpack.Decoder(), HeadReader()
    encoder.header_table_size = table_bytes
    for fields in lists:
        kind = hpack.NeverIndexedHeaderTuple if sensitive else hpack.HeaderTuple
        block = encoder.encode([kind(name, value) for name, value in fields], huffman=huffman)
        found = [value for name, value in decoder.decode(block) if str(name) == ":status"]
        number = int(found[0]) if len(found) == 1 and len(found[0]) == 3 and found[0].isdigit() else None
        waits = [value for name, value in fields if name == "retry-after"]
        head = reader.head(block)
        assert head.retry_after == (waits[0] if len(waits) == 1 else "")
        assert head.status in ((number,) if number else (None, 0))


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_random_blocks_have_a_status_or_none_or_raise_header_error(block: bytes) -> None:
    reader = HeadReader()
    try:
        status = reader.head(block).status
    except HeaderError:
        return
    assert status is None or 0 <= status <= 999


@given(st.binary(min_size=1, max_size=20), st.integers(0, 400), st.booleans())
def test_hpack_decodes_literals(name: bytes, length: int, secret: bool) -> None:
    assert hpack.Decoder().decode(literal(name, b"v" * length, secret), raw=True) == [(name, b"v" * length)]
