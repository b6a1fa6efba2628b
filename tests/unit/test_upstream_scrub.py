"""An upstream's key does not come back through its answers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from art.server.upstreams import Scrubber

KEY = b"abcabd"


@given(st.text("abcd", max_size=60), st.lists(st.integers(0, 60), max_size=8))
@settings(max_examples=300, deadline=None)
def test_however_a_stream_is_cut_the_key_is_out_of_it(text: str, cuts: list[int]) -> None:
    raw, scrubber = text.encode(), Scrubber(KEY)
    places = sorted({0, len(raw), *(cut for cut in cuts if cut <= len(raw))})
    pieces = [raw[start:end] for start, end in pairwise(places)]
    assert b"".join([*map(scrubber.feed, pieces), scrubber.finish()]) == raw.replace(KEY, b"[the key]")


def test_what_cannot_be_the_key_leaves_at_once() -> None:
    scrubber = Scrubber(KEY)
    assert scrubber.feed(b"data: hello ab") == b"data: hello "
    assert scrubber.feed(b"x") == b"abx"
    assert Scrubber(b"").feed(b"anything") == b"anything"
