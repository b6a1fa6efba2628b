"""What a secret looks like: keys, tokens, passwords, e-mail addresses. Pure functions from a text to places in it.

A detector may be asked about any text that an agent or a model wrote, so none may take longer than in proportion to its
length: repetitions are bounded or possessive, and begin only where a run of such characters begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Span = tuple[int, int]
"""Start and end of what was found."""
Detector = Callable[[str], Iterator[Span]]

_TOKEN = r"[A-Za-z0-9_-]"
_EDGE = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
"""Keys stand alone: what continues a word is no key. The letter of `\\n` in JSON text is no word."""
_STOP = r"(?![A-Za-z0-9])"
"""Behind what has one length."""

_VENDORS = (
    rf"sk-{_TOKEN}{{20,}}+",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{24,}+",
    r"gh[pousr]_[A-Za-z0-9]{30,}+",  # GitHub
    r"github_pat_[A-Za-z0-9_]{22,}+",
    rf"gl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat)-{_TOKEN}{{16,}}+",  # GitLab
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}+",  # Slack
    r"xapp-[0-9]-[A-Za-z0-9-]{20,}+",
    rf"AIza{_TOKEN}{{35}}{_STOP}",  # Google
    rf"ya29\.{_TOKEN}{{20,}}+",
    rf"GOCSPX-{_TOKEN}{{20,}}+",
    r"hf_[A-Za-z0-9]{30,}+",  # Hugging Face
    r"api_org_[A-Za-z0-9]{30,}+",
    r"r8_[A-Za-z0-9]{30,}+",  # Replicate
    r"gsk_[A-Za-z0-9]{40,}+",  # Groq
    r"xai-[A-Za-z0-9]{40,}+",
    r"pplx-[A-Za-z0-9]{40,}+",  # Perplexity
    rf"nvapi-{_TOKEN}{{40,}}+",
    r"fw_[A-Za-z0-9]{20,}+",  # Fireworks
    r"tvly-[A-Za-z0-9-]{20,}+",  # Tavily
    rf"SG\.{_TOKEN}{{16,64}}+\.{_TOKEN}{{16,}}+",  # SendGrid
    rf"key-[0-9a-f]{{32}}{_STOP}",  # Mailgun
    rf"SK[0-9a-f]{{32}}{_STOP}",  # Twilio
    rf"npm_[A-Za-z0-9]{{36}}{_STOP}",
    rf"pypi-{_TOKEN}{{50,}}+",
    rf"do[opr]_v1_[0-9a-f]{{64}}{_STOP}",  # DigitalOcean
    rf"dapi[0-9a-f]{{32}}{_STOP}",  # Databricks
    rf"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{{32}}{_STOP}",  # Shopify
    r"lin_api_[A-Za-z0-9]{32,}+",  # Linear
    r"(?:secret|ntn)_[A-Za-z0-9]{40,}+",  # Notion
    rf"wandb_v1_{_TOKEN}{{20,}}+",
    rf"[0-9]{{8,10}}:AA{_TOKEN}{{33}}{_STOP}",  # Telegram
    rf"art_(?:admin|[0-9a-f]{{12}})_{_TOKEN}{{40,}}+",  # our own
)
_VENDOR = re.compile(rf"{_EDGE}(?:{'|'.join(_VENDORS)})")
_VENDOR_MARKS = (
    *(
        "sk-",
        "sk_",
        "rk_",
        "whsec_",
        "gh",
        "github_pat_",
        "gl",
        "xox",
        "xapp-",
        "AIza",
        "ya29.",
        "GOCSPX-",
        "hf_",
        "api_org_",
    ),
    *("r8_", "gsk_", "xai-", "pplx-", "nvapi-", "fw_", "tvly-", "SG.", "key-", "SK", "npm_", "pypi-", "_v1_"),
    *("dapi", "shp", "lin_api_", "secret_", "ntn_", ":AA", "art_"),
)
"""What a text must hold for the long expression above to be tried on it."""

_NAMED = (
    r"(?:api[_-]?key|secret[_-]?key|client[_-]?secret|access[_-]?token|auth[_-]?token|refresh[_-]?token"
    r"|account[_-]?key|private[_-]?token|password|passwd)"
)
_ASSIGNED = re.compile(
    rf"(?i){_NAMED}[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}}[\"']?(?P<value>"
    r"(?=[^\s\"']{0,80}?[0-9])(?=[^\s\"']{0,80}?[a-z])[A-Za-z0-9+/_.=!@#$%^&*~-]{8,}+)(?![(\[])"
)
"""Only values with letters and digits: `password = get_password()` is a program."""
_IN_URL = re.compile(r"://(?P<value>[^\s/:@\"'<>]{1,64}:[^\s/@\"'<>]{1,128})@")
SECRET_NAMES = re.compile(rf"(?i)(?:[a-z0-9]{{1,20}}[_-])?{_NAMED}|(?:proxy-)?authorization|x-api-key")
"""Names of fields whose text is a secret whatever it looks like."""

_AWS_ID = re.compile(rf"{_EDGE}(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ANVA|AIPA)[A-Z0-9]{{16}}{_STOP}")
_AWS_SECRET = re.compile(
    r"(?i)(?:aws|secret|access)[a-z_ -]{0,24}(?:key|secret)[\"']?[ \t]{0,4}[:=]{1,2}>?[ \t]{0,4}[\"']?"
    r"(?P<value>[a-z0-9/+]{40})(?![a-z0-9/+=])"
)
_AWS_SESSION = re.compile(r"(?<![A-Za-z0-9+/])(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=]{20,}+")

_JWT = re.compile(
    rf"{_EDGE}ey[IJ]{_TOKEN}{{8,}}+\.(?:ey[IJ]{_TOKEN}{{4,}}+\.{_TOKEN}*+|{_TOKEN}*+(?:\.{_TOKEN}++){{3}})"
)
_BEARER = re.compile(
    rf"(?i){_EDGE}bearer[ \t]{{1,4}}(?P<value>(?=[^\s0-9]{{0,200}}[0-9])[a-z0-9._~+/-]{{16,}}+={{0,2}})"
)
_BASIC = re.compile(
    r"(?i)(?:authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?|\A)basic[ \t]{1,4}(?P<value>[a-z0-9+/]{8,}+={0,2})"
)

_PEM = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BEGIN, _END = re.compile(f"-----BEGIN {_PEM}"), re.compile(f"-----END {_PEM}")
_BREAK = r"(?:\s|\\[nrt])"
_PEM_BODY = re.compile(
    rf"{_BREAK}*+(?:[A-Za-z-]{{1,24}}: [^\n\\]{{0,80}}{_BREAK}++){{0,6}}[A-Za-z0-9+/=]{{16,}}+(?:[A-Za-z0-9+/=]|{_BREAK})*+"
)
"""Headers such as `Proc-Type`, then lines of base64."""
PEM_CHARACTERS = 20_000
"""The longest private key; a 16,384-bit RSA key has 12,700. An END farther away is another key's."""

_EMAIL = re.compile(
    r"(?<![\w.%+-])(?P<local>[\w.%+-]{1,64}+)@(?P<host>(?:\w(?:[\w-]{0,61}\w)?\.){1,8}"
    r"(?:[^\W\d_]{2,24}|xn--[A-Za-z0-9-]{2,40}))(?![\w-])"
)
_SCALED = re.compile(r"[1-9]x\.(?:png|jpe?g|gif|webp|svg|avif|ico)")
"""`icon@2x.png` is a file."""


def names(text: str, *words: str) -> bool:
    """Whether one of the words, in whatever case, stands in the text: most texts need no slower look."""
    lowered = text.lower()
    return any(word in lowered for word in words)


def private_key(text: str) -> Iterator[Span]:
    """PEM private keys, whole ones and the beginnings of ones that were cut off."""
    at = 0
    end = _END.search(text)
    while begin := _BEGIN.search(text, at):
        at = begin.end()
        while end is not None and end.start() < at:
            end = _END.search(text, end.end())
        if end is not None and end.start() - at <= PEM_CHARACTERS:
            at = end.end()
        elif body := _PEM_BODY.match(text, at):
            at = body.end()
        else:
            continue  # somebody writes about keys
        yield begin.start(), at


def api_key(text: str) -> Iterator[Span]:
    """Keys of the usual vendors, by how they begin."""
    if any(mark in text for mark in _VENDOR_MARKS):
        yield from (found.span() for found in _VENDOR.finditer(text))


def aws(text: str) -> Iterator[Span]:
    """Access key ids, session tokens, and secret keys that are named as such."""
    yield from (found.span() for found in _AWS_ID.finditer(text))
    yield from (found.span() for found in _AWS_SESSION.finditer(text))
    if names(text, "key", "secret"):
        yield from (found.span("value") for found in _AWS_SECRET.finditer(text))


def jwt(text: str) -> Iterator[Span]:
    """JSON web tokens, signed and encrypted ones."""
    if "ey" in text:
        yield from (found.span() for found in _JWT.finditer(text))


def bearer(text: str) -> Iterator[Span]:
    """What stands behind `Bearer`, or behind `Basic` in an Authorization header."""
    if names(text, "bearer"):
        yield from (found.span("value") for found in _BEARER.finditer(text))
    if names(text, "basic"):
        yield from (found.span("value") for found in _BASIC.finditer(text))


def password(text: str) -> Iterator[Span]:
    """What is assigned to a name such as `api_key` or `password`, and user and password in an address."""
    if names(text, "key", "secret", "token", "passw"):
        yield from (found.span("value") for found in _ASSIGNED.finditer(text))
    if "://" in text:
        yield from (found.span("value") for found in _IN_URL.finditer(text))


def email(text: str) -> Iterator[Span]:
    """E-mail addresses. `git@host` names no person."""
    if "@" not in text:
        return
    for found in _EMAIL.finditer(text):
        if found["local"] != "git" and _SCALED.fullmatch(found["host"]) is None:
            yield found.span()
