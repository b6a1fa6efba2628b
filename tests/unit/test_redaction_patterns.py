"""What counts as a secret: what must be found, what must be left alone, and that no text takes long to read."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import string
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art.config.content import PATTERNS, ContentRule
from art.store.scrub import BUILT_IN, Scrubber

BRIEF = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Other programs may have the machine: how long a draw takes says nothing."""
STANDARD = Scrubber.of(ContentRule(redact=("standard",)))
LONG = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
HEX = "0123456789abcdef" * 4
BODY = base64.b64encode(bytes(range(192))).decode()
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY[:64]}\n{BODY[64:128]}\n-----END RSA PRIVATE KEY-----"

FOUND = [
    ("api_key", f"sk-{LONG[:48]}"),
    ("api_key", f"sk-proj-{LONG}_{LONG[:20]}-x"),
    ("api_key", f"sk-ant-api03-{LONG}"),
    ("api_key", f"sk_live_{LONG[:24]}"),
    ("api_key", f"ghp_{LONG[:36]}"),
    ("api_key", f"github_pat_{LONG[:22]}_{LONG}"),
    ("api_key", f"glpat-{LONG[:20]}"),
    ("api_key", f"xoxb-123456789012-{LONG[:24]}"),
    ("api_key", f"AIza{LONG[:35]}"),
    ("api_key", f"hf_{LONG[:34]}"),
    ("api_key", f"gsk_{LONG[:52]}"),
    ("api_key", f"SG.{LONG[:22]}.{LONG[:43]}"),
    ("api_key", f"npm_{LONG[:36]}"),
    ("api_key", f"123456789:AA{LONG[:33]}"),
    ("api_key", f"art_0123456789ab_{LONG[:43]}"),
    ("aws", f"AKIA{'Q7' * 8}"),
    ("jwt", f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{LONG[:43]}"),
    ("private_key", PEM),
    ("private_key", PEM.replace("RSA ", "").replace("\n", "\\n")),
    (
        "private_key",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{BODY}\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
    ),
    ("email", "ada.lovelace+notes@mail.example.co.uk"),
    ("email", "jürgen@exämple.de"),
    ("email", "x_1@sub.example.museum"),
    ("card", "4111 1111 1111 1111"),
    ("card", "5555-5555-5555-4444"),
    ("card", "378282246310005"),
    ("card", "3782 822463 10005"),
    ("card", "6011111111111117"),
    ("iban", "DE89370400440532013000"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB29 NWBK 6016 1331 9268 19"),
    ("iban", "NO93 8601 1117 947"),
    ("phone", "+14155552671"),
    ("phone", "+1 (415) 555-2671"),
    ("phone", "+44 20 7946 0958"),
    ("phone", "+44 (0)20 7946 0958"),
    ("phone", "+49-171-1234567"),
    ("phone", "+33 1 23 45 67 89"),
    ("phone", "0049 171 1234567"),
    ("phone", "(415) 555-2671"),
    ("phone", "415-555-2671"),
    ("phone", "415.555.2671"),
    ("phone", "020 7946 0958"),
    ("phone", "07700 900123"),
    ("phone", "0171/1234567"),
    ("phone", "01 23 45 67 89"),
    ("phone", "03-1234-5678"),
    ("phone", "(02) 9876 5432"),
]


@pytest.mark.parametrize(("name", "secret"), FOUND)
@pytest.mark.parametrize("frame", ["{}", "It is {}.", "key={} and more", '"{}"', "({})", "see:\n{}\nthanks"])
def test_a_secret_is_found_whole(name: str, secret: str, frame: str) -> None:
    assert STANDARD.text(frame.format(secret)) == frame.format(f"[REDACTED:{name}]")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {LONG}", LONG),
        (f"curl -H 'authorization: bearer {LONG}=='", LONG),
        (f"Authorization: Basic {BODY[:24]}", BODY[:24]),
        (f"aws_secret_access_key = {BODY[:39]}Q", f"{BODY[:39]}Q"),
        ("password: hunter2-hunter2", "hunter2-hunter2"),
        ('DB_PASSWORD="s3cr3t!word"', "s3cr3t!word"),
        (f"client_secret={LONG[:32]}&x=1", LONG[:32]),
        ("postgres://ada:l0velace@db.example:5432/x", "ada:l0velace"),
        ("my cell is 5551234567, call me", "5551234567"),
        ("Tel.: 415 555 2671", "415 555 2671"),
        ("WhatsApp 4915112345678", "4915112345678"),
        (f"\\nsk-{LONG}", f"sk-{LONG}"),
        (f"https://example.org/{'a/' * 60}?mail=ada@example.org&x=1", "ada@example.org"),
    ],
)
def test_what_the_words_around_it_give_away(text: str, secret: str) -> None:
    kept = STANDARD.text(text)
    assert secret not in kept
    assert "[REDACTED:" in kept


HARMLESS = [
    "2026-11-30T12:34:56.789Z",
    "30.11.2026 12:34",
    "+2026-11-30 12:00:01 INFO started",  # a line of a diff
    "11/30/2026, 07-11-2026",
    "1764504896, 1764504896123, 1764504896123456789",
    "+1764504896",
    "v10.2.3-rc.1+build.20261130",
    "192.168.100.200:8080, 10.0.0.1",
    "512 768 1024 2048",
    "3.14159265358979, -1.2345678901234e-05, +1.23456789, 0.4111111111111111",
    "a1b2c3d4e5f60718293a4b5c6d7e8f9012345678",
    "commit 0123456789012345678901234567890123456789",
    "call-0123456789abcdef0123456789abcdef",
    "ro-5d41402abc4b2a76b9719d911017c592",
    "550e8400-e29b-41d4-a716-446655440000",
    "00000000-0123-4567-8901-abcdef012345",
    "git@github.com:openai/openai-python.git",
    "icon@2x.png, lodash@4.17.21, @types/node",
    "password = get_password()",
    "api_key=os.environ['OPENAI_API_KEY']",
    "the bearer of good news, Bearer authentication",
    "look for -----BEGIN PRIVATE KEY----- in the file",
    "sk-learn, task-force, sk-",
    "GB is a country, DE89 is none",
    "4111 1111 1111 1112",  # no check digit
    "SGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQu",
    "rows 0100-0200, lines 12-345, pages 7/8",
    "tool call 17, signal 9",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert STANDARD.text(text) == text


@settings(BRIEF, max_examples=150)
@given(
    st.one_of(
        st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1)).map(str),
        st.dates().map(lambda day: day.strftime("%d.%m.%Y")),
        st.uuids().map(str),
        st.uuids().map(lambda one: f"call-{one.hex}"),
        st.uuids().map(lambda one: f"ro-{one.hex}"),
        st.binary(min_size=20, max_size=20).map(bytes.hex),
        st.binary(min_size=32, max_size=32).map(bytes.hex),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.floats(0, 1).map(lambda one: f"{one:.6f}"),
        st.integers(-(10**11), 10**11).map(str),
        st.lists(st.integers(0, 4096), min_size=1, max_size=8).map(str),
        st.tuples(*[st.integers(0, 255)] * 4).map(lambda parts: ".".join(map(str, parts))),
    )
)
def test_ids_dates_and_numbers_are_no_secrets(text: str) -> None:
    assert STANDARD.text(f"x = {text};") == f"x = {text};"


@BRIEF
@given(
    st.from_regex(r"\A[a-z0-9]([a-z0-9._+]{0,20}[a-z0-9])?\Z"),
    st.from_regex(r"\A([a-z0-9]{1,12}\.){1,3}(com|org|de|museum)\Z"),
    st.text(" ,;\n", min_size=1, max_size=3),
)
def test_every_address_is_found(local: str, host: str, between: str) -> None:
    if local == "git":
        local = "git.x"
    assert STANDARD.text(f"a{between}{local}@{host}{between}") == f"a{between}[REDACTED:email]{between}"


def luhn(body: str) -> str:
    """`body` with the digit that makes it a card's number."""
    total = 0
    for at, digit in enumerate(reversed(body)):
        value = int(digit) * (2 if at % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return body + str(-total % 10)


@BRIEF
@given(
    st.sampled_from(["4", "51", "2221"]),
    st.text("0123456789", min_size=15, max_size=15),
    st.sampled_from("- "),
)
def test_every_card_is_found_and_its_neighbour_is_not(brand: str, digits: str, gap: str) -> None:
    number = luhn((brand + digits)[:15])
    blocks = gap.join(number[at : at + 4] for at in range(0, 16, 4))
    if len(set(number)) > 1:
        assert STANDARD.text(f"pay with {number}.") == "pay with [REDACTED:card]."
        assert STANDARD.text(f"pay with {blocks}.") == "pay with [REDACTED:card]."
    wrong = number[:-1] + str((int(number[-1]) + 1) % 10)
    assert "card" not in STANDARD.text(f"pay with {wrong}.")


@BRIEF
@given(st.text(max_size=60), st.sampled_from([secret for _, secret in FOUND]), st.text(max_size=60))
def test_what_was_redacted_is_not_redacted_again(before: str, secret: str, after: str) -> None:
    once = STANDARD.text(f"{before} {secret} {after}")
    assert STANDARD.text(once) == once


HOSTILE = [
    "a", "0", "-", ".", "@", "a@", "a@b.", "a.b.", "@a.", " 0", "0 ", "01 ", "12-", "+1", "+49 1", "+", "(0",
    "ey", "eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaa.eyJaaaa.", "sk-", "sk-a ", "SG.", "SG.aaaaaaaaaaaaaaaa.", "ghp_",
    "AKIA", "A", "DE", "DE89", "DE89 3704 ", "bearer ", "Bearer a", "password=", "password=a", "aws_secret_",
    "secret key = ", "://", "://a:", "://a:b", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----\nA",
    "-----END PRIVATE KEY-----", "4111 ", "4111-1111-", "{", "[", '{"a":', '"\\u0040', "\\n", "[REDACTED:", "key-", "é",
]  # fmt: skip


def read_whole(piece: str, size: int) -> None:
    """A pattern that goes back and forth takes hours here, and the suite's time limit ends it."""
    text = piece * (size // len(piece)) + "!"
    kept = STANDARD.text(text)
    assert kept == text or "[REDACTED:" in kept


@pytest.mark.parametrize("piece", HOSTILE)
def test_anything_is_read_in_one_go(piece: str) -> None:
    read_whole(piece, 50_000)


@pytest.mark.extended
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_anything_is_read_in_one_go(piece: str) -> None:
    read_whole(piece, 1_000_000)


def test_the_names_of_the_settings_are_the_patterns_there_are() -> None:
    assert tuple(BUILT_IN) == PATTERNS
    assert ContentRule(redact="email, card").redact == ("email", "card")  # type: ignore[arg-type]
    assert ContentRule(redact=("standard",)).redact == PATTERNS
    assert ContentRule(redact=("off",)).redact == ()


def test_only_what_was_asked_for_is_looked_for() -> None:
    text = f"ada@example.org has sk-{LONG}"
    assert Scrubber.of(ContentRule(redact=("email",))).text(text) == f"[REDACTED:email] has sk-{LONG}"
    assert Scrubber.of(ContentRule()).text(text) == text


def test_own_patterns_and_an_own_function() -> None:
    rule = ContentRule(redact=("email",), redact_patterns={"badge": r"EMP-\d{4}"})
    own = Scrubber.of(rule, lambda text: text.replace("Ada", "A."))
    assert own.text("Ada, EMP-1234, ada@example.org") == "A., [REDACTED:badge], [REDACTED:email]"


def test_a_function_that_fails_keeps_nothing() -> None:
    def broken(text: str) -> str:
        raise KeyError(text)

    assert Scrubber.of(ContentRule(), broken).text("Ada") == "[REDACTED:own function failed]"
    assert Scrubber.of(ContentRule(), lambda text: None).text("Ada") == "[REDACTED:own function failed]"  # type: ignore[arg-type, return-value]


def test_json_stays_json_and_hides_nothing() -> None:
    arguments = json.dumps({"to": "ada@example.org", "card": 4111111111111111, "n": 3, "note": "a\nb"})
    escaped = arguments.replace("@", "\\u0040")
    for text in (arguments, escaped, f" {arguments}"):
        kept = json.loads(STANDARD.text(text))
        assert kept == {"to": "[REDACTED:email]", "card": "[REDACTED:card]", "n": 3, "note": "a\nb"}
    nested = json.dumps({"inner": escaped})
    assert "example.org" not in STANDARD.text(nested)
    assert "u0040" not in STANDARD.text(nested)
    untouched = '{"b": 1,  "a": [1, 2.0, null]}'
    assert STANDARD.text(untouched) == untouched


def test_a_field_that_is_called_a_password_is_one() -> None:
    value = {"password": "swordfish", "headers": {"Authorization": "Token abcdef"}, "user": "ada", "n": 1}
    assert STANDARD.json(value) == {
        "password": "[REDACTED:password]",
        "headers": {"Authorization": "[REDACTED:password]"},
        "user": "ada",
        "n": 1,
    }
    schema = {"properties": {"password": {"type": "string"}}, "required": ["password"]}
    assert STANDARD.json(schema) == schema
    assert STANDARD.json({"ada@example.org": 1, "eve@example.org": 2}) == {
        "[REDACTED:email]": 1,
        "[REDACTED:email] ": 2,
    }


SECRET = f"sk-{LONG}"


@BRIEF
@given(st.lists(st.integers(0, len(SECRET)), min_size=1, max_size=6))
def test_a_secret_cut_into_pieces_is_found(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(SECRET)]
    pieces = ["my key: ", *(SECRET[a:b] for a, b in itertools.pairwise(at)), " ok?"]
    parts = [{"type": "text", "text": piece} for piece in pieces]
    chunks = [
        {
            "object": "chat.completion.chunk",
            "id": "c",
            "choices": [{"index": i % 2, "delta": {"content": text}}],
        }
        for piece in pieces
        for i, text in enumerate((piece, "other"))
    ]
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "t", "text": piece}} for piece in pieces
    ]
    tool = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}]}
        for piece in pieces
    ]
    responses = [
        {"type": "response.output_text.delta", "output_index": 0, "delta": piece} for piece in pieces
    ]

    def joined(items: list[dict], *path: object) -> str:  # type: ignore[type-arg]
        out = ""
        for item in items:
            value: object = item
            for step in path:
                value = value[step]  # type: ignore[index]
            out += str(value)
        return out

    told = "my key: [REDACTED:api_key] ok?"
    assert joined(STANDARD.json(parts), "text") == told
    assert joined(STANDARD.json(chunks)[::2], "choices", 0, "delta", "content") == told
    assert joined(STANDARD.json(chunks)[1::2], "choices", 0, "delta", "content") == "other" * len(pieces)
    assert joined(STANDARD.json(deltas), "delta", "text") == told
    place = ("choices", 0, "delta", "tool_calls", 0, "function", "arguments")
    assert joined(STANDARD.json(tool), *place) == told
    assert joined(STANDARD.json(responses), "delta") == told


def test_messages_are_not_joined_and_tokens_do_not_spell_it_out() -> None:
    messages = [{"role": "user", "content": "415"}, {"role": "assistant", "content": "-555-2671"}]
    assert STANDARD.json(messages) == messages
    tokens = [{"token": piece, "logprob": -1.0} for piece in ("ada", "@", "example", ".org")]
    choice = {"message": {"role": "assistant", "content": "ada@example.org"}, "logprobs": {"content": tokens}}
    kept = STANDARD.json({"choices": [{**choice, "token_ids": [1, 2, 3]}], "prompt_token_ids": [4]})
    assert kept["choices"][0]["logprobs"] is None
    assert kept["choices"][0]["token_ids"] is None
    assert kept["prompt_token_ids"] is None
    harmless = {"choices": [{"message": {"content": "hi"}, "token_ids": [1]}]}
    assert STANDARD.json(harmless) == harmless


def test_what_is_nested_without_end_is_not_read() -> None:
    deep: object = "ada@example.org"
    for _ in range(5000):
        deep = [deep]
    assert "example" not in json.dumps(STANDARD.json({"a": deep}))
    text = "[" * 3000 + '"ada@example.org"' + "]" * 3000
    assert "example" not in STANDARD.text(text)


@BRIEF
@given(st.text(string.printable, max_size=80))
def test_nothing_happens_to_a_text_without_secrets_in_json(text: str) -> None:
    kept = STANDARD.text(text)
    if "[REDACTED:" not in kept:
        assert kept == text


def test_ids_of_our_own_are_kept() -> None:
    ids = [f"call-{uuid.uuid4().hex}", f"ro-{uuid.uuid4().hex}", f"job_{uuid.uuid4().hex[:20]}"]
    assert STANDARD.json(ids) == ids
