"""Numbers that belong to a person: cards, accounts, telephones. Pure functions from a text to places in it.

Most numbers in a text are none of these: dates, versions, sizes, times, ids. So a card and an account are held against
their check digits, and a telephone number against the forms that numbers are written in; without `+` or separators it
is one only where the words before it say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from art.store.patterns import Span, names

_ALONE = r"(?<![\w+])(?<![0-9][.,:/])(?<![A-Za-z0-9]-)"
"""Not in the middle of a word, of a decimal number, of a date."""
_OVER = r"(?!\w)(?![.,:/][0-9])(?!-\w)"
_GAP = r"[ \u00a0-]"

_CARD = re.compile(
    rf"{_ALONE}(?:[0-9]{{13,19}}|[0-9]{{4}}(?P<gap>{_GAP})[0-9]{{4}}(?P=gap)[0-9]{{4}}(?P=gap)[0-9]{{1,4}}(?:(?P=gap)[0-9]{{3}})?"
    rf"|[0-9]{{4}}(?P<wide>{_GAP})[0-9]{{6}}(?P=wide)[0-9]{{4,5}}){_OVER}"
)
_BRANDS = (
    (re.compile(r"4"), (13, 16, 19)),  # Visa
    (re.compile(r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), (16,)),  # Mastercard
    (re.compile(r"3[47]"), (15,)),  # American Express
    (re.compile(r"6011|64[4-9]|65"), (16, 17, 18, 19)),  # Discover
    (re.compile(r"30[0-5]|3[689]"), (14, 16, 19)),  # Diners
    (re.compile(r"35(?:2[89]|[3-8])"), (16, 17, 18, 19)),  # JCB
    (re.compile(r"62|81"), (16, 17, 18, 19)),  # UnionPay
    (re.compile(r"50(?:18|20|38)|6304|6759|676[1-3]"), (13, 14, 15, 16, 17, 18, 19)),  # Maestro
)

_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?= ?[A-Z0-9]{4})")
_IBAN_LENGTHS = {
    **dict.fromkeys(("NO",), 15),
    **dict.fromkeys(("BE",), 16),
    **dict.fromkeys(("DK", "FI", "FO", "GL", "NL", "FK", "SD"), 18),
    **dict.fromkeys(("MK", "SI"), 19),
    **dict.fromkeys(("AT", "BA", "EE", "KZ", "LT", "LU", "XK", "MN"), 20),
    **dict.fromkeys(("CH", "CR", "HR", "LI", "LV"), 21),
    **dict.fromkeys(("BG", "BH", "DE", "GB", "GE", "IE", "ME", "RS"), 22),
    **dict.fromkeys(("AE", "GI", "IL", "IQ", "OM", "SO", "TL"), 23),
    **dict.fromkeys(("AD", "CZ", "ES", "MD", "PK", "RO", "SA", "SE", "SK", "TN", "VG"), 24),
    **dict.fromkeys(("LY", "PT", "ST"), 25),
    **dict.fromkeys(("IS", "TR"), 26),
    **dict.fromkeys(("BI", "DJ", "FR", "GR", "IT", "MC", "MR", "SM"), 27),
    **dict.fromkeys(("AL", "AZ", "BY", "CY", "DO", "GT", "HN", "HU", "LB", "NI", "PL", "SV"), 28),
    **dict.fromkeys(("BR", "EG", "PS", "QA", "UA"), 29),
    **dict.fromkeys(("JO", "KW", "MU", "YE"), 30),
    **dict.fromkeys(("MT", "SC"), 31),
    **dict.fromkeys(("LC",), 32),
    **dict.fromkeys(("RU",), 33),
}
"""Characters by country (the SWIFT registry of ISO 13616)."""

_COUNTRY = (
    r"(?:1|7|20|27|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|2[1-69][0-9]|3[578][0-9]|42[0-9]|5[09][0-9]"
    r"|6[789][0-9]|8[0578][0-9]|9[679][0-9])"
)
"""Calling codes of ITU-T E.164."""
_BETWEEN = r"[ \u00a0./-]"
_PLUS = re.compile(
    rf"(?<![\w+])(?:\+|(?<![.,:/-])00[ -]?)(?P<number>{_COUNTRY}(?:{_BETWEEN}?\([0-9]{{1,5}}\))?{_BETWEEN}?[0-9]{{1,14}}"
    rf"(?:{_BETWEEN}[0-9]{{1,14}}){{0,6}}){_OVER}"
)
_LEAST, _MOST = 9, 15
"""Digits of a number with its country code. E.164 allows 15; fewer than 9 have small islands alone, and dates."""
_AMERICAN = re.compile(r"1[2-9][0-9]{2}[2-9][0-9]{6}")
"""Every number behind +1. A time in seconds is none."""

_NANP = re.compile(
    rf"{_ALONE}(?:1[ .-])?(?:\([2-9][0-9]{{2}}\) ?|[2-9][0-9]{{2}}(?P<gap>[ .-]))[2-9][0-9]{{2}}(?(gap)(?P=gap)|[ .-])[0-9]{{4}}{_OVER}"
)
"""North America: (555) 123-4567, 555-123-4567. With blanks alone it may be any three numbers."""
_TRUNK = re.compile(
    rf"{_ALONE}(?:\(0[1-9][0-9]{{0,4}}\) ?|0[1-9][0-9]{{1,4}}[ \u00a0/-])[1-9][0-9]{{1,7}}"
    rf"(?:(?P<gap>[ \u00a0-])[0-9]{{2,8}}(?:(?P=gap)[0-9]{{2,8}}){{0,3}})?{_OVER}"
)
"""With a 0 in front: 020 7946 0958, 0171/1234567, (02) 9876 5432."""
_SHORT_TRUNK = re.compile(rf"{_ALONE}0[1-9](?P<gap>[ -])(?!19|20)[1-9][0-9]{{3}}(?P=gap)[0-9]{{4}}{_OVER}")
"""03-1234-5678."""
_PAIRS = re.compile(
    rf"{_ALONE}(?<![0-9] )0[1-9](?P<gap>[ \u00a0.-])[0-9]{{2}}(?:(?P=gap)[0-9]{{2}}){{3}}{_OVER}(?! [0-9])"
)
"""01 23 45 67 89."""
_SAID = re.compile(
    r"(?i)\b(?:tel|telephone|telefon|phone|fon|mobile|mobil|cell|cellphone|handy|fax|whatsapp|sms|dial"
    r"|(?:call|text|ring|reach) (?:me|us|him|her|them|back))\b[^0-9]*\Z"
)
_WORDS = (
    *("tel", "fon", "phone", "mobil", "cell", "handy", "fax", "whatsapp", "sms", "dial"),
    *("call ", "text ", "ring ", "reach "),
)
"""Without one of them no word of the expression above is there."""
_NEAR = 32
"""Characters before a number in which a word says what it is."""
_BARE = re.compile(rf"{_ALONE}[0-9](?: ?[0-9]){{6,14}}{_OVER}")


def card(text: str) -> Iterator[Span]:
    """Card numbers: a brand's beginning and length, and the check digit of Luhn (ISO/IEC 7812-1)."""
    for found in _CARD.finditer(text):
        digits = re.sub(r"[^0-9]", "", found[0])
        known = any(begin.match(digits) and len(digits) in lengths for begin, lengths in _BRANDS)
        if known and len(set(digits)) > 1 and _luhn(digits):
            yield found.span()


def _luhn(digits: str) -> bool:
    values = [int(digit) for digit in reversed(digits)]
    doubled = (sum(divmod(2 * value, 10)) for value in values[1::2])
    return (sum(values[::2]) + sum(doubled)) % 10 == 0


def iban(text: str) -> Iterator[Span]:
    """Account numbers: the country's length, and the remainder 1 by 97 (ISO 13616, ISO 7064)."""
    for found in _IBAN.finditer(text):
        end = _iban_end(text, found.start(), _IBAN_LENGTHS.get(found[0][:2], 0))
        if end is not None:
            number = text[found.start() : end].replace(" ", "")
            turned = number[4:] + number[:4]
            if int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1:
                yield found.start(), end


def _iban_end(text: str, start: int, length: int) -> int | None:
    """Where the number ends that begins at `start`: after `length` characters, in blocks of four or in one piece."""
    at, count = start, 0
    while count < length:
        if count and count % 4 == 0 and text[at : at + 1] == " ":
            at += 1
        letter = text[at : at + 1]
        if not (letter.isascii() and (letter.isdigit() or letter.isupper())):
            return None
        at, count = at + 1, count + 1
    return None if not length or text[at : at + 1].isalnum() else at


def phone(text: str) -> Iterator[Span]:
    """Telephone numbers with their country code, in a national form, or where the words before them say so."""
    yield from (found.span() for found in _PLUS.finditer(text) if _is_international(found))
    for found in _NANP.finditer(text):
        if found["gap"] != " " or _said(text, found.start()):
            yield found.span()
    for found in _TRUNK.finditer(text):
        if 9 <= _count(found[0]) <= 12:
            yield found.span()
    yield from (found.span() for found in _SHORT_TRUNK.finditer(text))
    yield from (found.span() for found in _PAIRS.finditer(text))
    if names(text, *_WORDS):
        for found in _BARE.finditer(text):
            if _said(text, found.start()):
                yield found.span()


def _is_international(found: re.Match[str]) -> bool:
    number = found["number"]
    gaps = re.findall(r"[^0-9]+", number)
    if gaps == ["."] or (
        found[0].startswith("00") and not gaps
    ):  # +1.23456789, and a number filled up with zeros
        return False
    digits = re.sub(r"[^0-9]", "", number)
    if digits.startswith("1"):
        return _AMERICAN.fullmatch(digits) is not None
    return _LEAST <= len(digits) <= _MOST


def _count(text: str) -> int:
    return sum(letter.isdigit() for letter in text)


def _said(text: str, start: int) -> bool:
    """Whether the words just before say that a telephone number follows."""
    return _SAID.search(text[max(0, start - _NEAR) : start]) is not None
