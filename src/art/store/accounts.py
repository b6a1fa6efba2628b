"""Keys that replace one another, and what was used in their name."""

from __future__ import annotations

from art.store import key_rows
from art.store.database import Database
from art.store.records import KeyRow


class Accounts:
    """The part of the store that knows which keys belong together. Every method returns after its change is committed."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def replace(self, old: KeyRow, new: KeyRow) -> None:
        """Keep a key with its new end and the one in its place; the rollouts that it opened are the new one's."""
        await self._db.write(lambda conn: key_rows.replace_key(conn, old, new))

    async def tokens(self, account: str, day: int) -> int:
        """Tokens used by an account on a day (`day_of`)."""
        return (await self.tokens_of_all(day)).get(account, 0)

    async def tokens_of_all(self, day: int) -> dict[str, int]:
        """The same of every account that used any."""
        return await self._db.read(lambda conn: key_rows.tokens_of_all(conn, day))

    async def add_tokens(self, account: str, day: int, tokens: int) -> None:
        await self._db.write(lambda conn: key_rows.add_tokens(conn, account, day, tokens))
