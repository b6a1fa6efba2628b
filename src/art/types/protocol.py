"""Which clients and servers understand one another.

Both sides send the protocols they speak in the header `X-ART-Protocol`: one number, or the oldest and the newest
("1-3"). They work together when they have one in common. A request without the header comes from a program that
is no client of ours (an OpenAI SDK, curl) and is taken as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from art.errors import InvalidInput, VersionMismatch
from art.version import DISTRIBUTION, package_version

PROTOCOL_HEADER = "X-ART-Protocol"
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True)
class Spoken:
    """The protocols that one side speaks."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"


OURS = Spoken(1, 1)
"""`newest` grows with every change of the control API that an older side would misread; a new optional field is none.
`oldest` grows when a server can no longer answer the clients of an older protocol."""


def spoken(text: str) -> Spoken:
    """What a header says. InvalidInput for anything but a number or a range."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise InvalidInput(
            f"the header {PROTOCOL_HEADER} is {text[:80]!r}", hint='a number or a range: "1-3"'
        )
    return Spoken(int(found[1]), int(found[2] or found[1]))


def check_client(client: Spoken) -> None:
    """On the server. VersionMismatch, naming the side to upgrade, when a client has no protocol in common with it."""
    _check(client=client, server=OURS, here="server")


def check_server(server: Spoken) -> None:
    """On the client. VersionMismatch, naming the side to upgrade, when a server has no protocol in common with it."""
    _check(client=OURS, server=server, here="client")


def _check(*, client: Spoken, server: Spoken, here: str) -> None:
    if client.oldest <= server.newest and server.oldest <= client.newest:
        return
    older = "client" if client.newest < server.oldest else "server"
    own = f"this {here} is {DISTRIBUTION} {package_version()}"
    raise VersionMismatch(
        f"the client speaks protocol {client}, the server {server}: they are too far apart",
        cause=f"the {older} is the older one; {own}",
        hint=f"upgrade the {older}: pip install --upgrade {DISTRIBUTION}"
        + (", and start art serve again" if older == "server" else ""),
    )
