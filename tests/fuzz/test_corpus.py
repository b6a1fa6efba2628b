"""Every input that fuzzing has kept, again: those that once broke something, and those that reach the most code."""

from __future__ import annotations

import json
import random
from pathlib import Path

import parser_mutation as mutation
import parser_run as run
import parser_targets as targets
import pytest

from art.backends.events import MAX_EVENT_BYTES, EventReader
from art.errors import InfraError
from art.tokens.parsers.base import CallParser

CORPUS = Path(__file__).parent / "corpus"


def kept(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize("name", targets.TARGETS)
def test_kept_inputs_break_no_promise(name: str) -> None:
    meant = [targets.TARGETS[name](data) for data in kept(name)]
    assert sum(meant) >= 5, "the kept inputs no longer get past the first check"


def test_the_run_knows_every_target() -> None:
    assert list(run.NAMES) == list(targets.TARGETS)
    assert {folder.name for folder in CORPUS.iterdir()} == set(targets.TARGETS)


def test_the_targets_notice_what_they_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: CallParser) -> list[str]:
        return []

    def wrong(body: object, *, size: int) -> object:
        raise KeyError("model")

    with monkeypatch.context() as patch:
        patch.setattr(CallParser, "finish", lost)
        with pytest.raises(AssertionError):
            any(targets.tool_calls(data) is None for data in kept("tool_calls"))
    with monkeypatch.context() as patch:
        patch.setattr(targets, "parse_chat_request", wrong)
        with pytest.raises(KeyError):
            targets.chat(b"{}")


def test_changed_requests_are_json_of_bounded_length() -> None:
    seed = kept("chat")[0]
    made = {mutation.changed(seed, 4096, number, otherwise=lambda data, most: b"?") for number in range(300)}
    assert len(made) > 150
    for data in made - {b"?"}:
        assert len(data) <= 4096
        json.loads(data.decode("utf-8", "surrogatepass"))


# -- the reader of event streams


def test_events_come_out_whole_however_the_stream_is_cut() -> None:
    texts = ["a", "line\u2028separator\x85\x0b\x1c", "🙂", "\n\r"]
    stream = b"\xef\xbb\xbf: comment\n\n"
    for number, (text, end) in enumerate(zip(texts, ("\n", "\r\n", "\r", "\n"), strict=True)):
        raw = json.dumps({"text": text}, ensure_ascii=False)
        stream += f"id: {number}{end}event: x{end}data: {raw}{end}{end}".encode()
    stream += b'data: {"a":\ndata: 1}\n\ndata:{"cut'
    expected = [*({"text": text} for text in texts), {"a": 1}]
    draw = random.Random(0)
    for _ in range(200):
        reader = EventReader()
        assert [
            event for part in targets.cut(stream, draw.randrange(10**9)) for event in reader.feed(part)
        ] == expected
    reader = EventReader()
    assert [event for byte in stream for event in reader.feed(bytes([byte]))] == expected


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff", b"[" * 100_000, b"NaN,"], ids=repr)
def test_what_is_no_event_is_an_error_of_the_server(data: bytes) -> None:
    with pytest.raises(InfraError, match="no JSON"):
        EventReader().feed(b"data: " + data + b"\n\n")


def test_an_event_without_an_end_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_EVENT_BYTES >= 1 << 20
    monkeypatch.setattr("art.backends.events.MAX_EVENT_BYTES", 1000)
    for line in (b"x" * 100, b"data: x\n" * 13):
        reader = EventReader()
        with pytest.raises(InfraError, match="over 1000 bytes"):
            any(reader.feed(line) for _ in range(11))
