"""A call whose prompt is text or tokens instead of messages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from art.errors import InvalidInput
from art.server.off_loop import OffLoop
from art.server.sessions import Located
from art.tokens.prompt import Prompt
from art.tokens.tokenizer import Tokenizer
from art.types.messages import Message, Piece


async def text_prompt(
    off_loop: OffLoop, located: Located, asked: str | Sequence[int], *, size: int
) -> tuple[Prompt, list[Message]]:
    """The prompt, and what it says beyond the call that it continues, as a message for the store.

    It continues the choice of its session whose tokens are its longest beginning; without one it is a branch of
    its own. InvalidInput for an empty prompt and for numbers that are no tokens.
    """
    tokenizer, at_most = located.entry.renderer.tokenizer, located.entry.context_length - 1
    if isinstance(asked, str):
        token_ids = await off_loop.run(size, tokenizer.encode, asked, at_most=at_most)
    else:
        token_ids = list(asked)
        _check_tokens(tokenizer, token_ids)
    if not token_ids:
        raise InvalidInput("the `prompt` is empty", hint="a model continues at least one token")
    node = located.session.graph.longest_prefix(token_ids)
    known = len(node.tokens) if node is not None else 0
    rest = tokenizer.decode(token_ids[known:], skip_special=False)
    prompt = Prompt(token_ids=token_ids, reused=known, node=node, depth=0, digest=_digest(token_ids))
    return prompt, [Message(role="user", content=rest)]


def _check_tokens(tokenizer: Tokenizer, token_ids: Sequence[int]) -> None:
    wrong = next((token for token in token_ids if not tokenizer.has_token(token)), None)
    if wrong is not None:
        raise InvalidInput(
            f"`prompt` holds {wrong}, which is no token of the model",
            hint=f"its tokenizer has {tokenizer.vocab_size} tokens",
        )


def _digest(token_ids: Sequence[int]) -> str:
    """Never that of a conversation: those are found by their messages."""
    return hashlib.sha256(f"tokens {','.join(map(str, token_ids))}".encode()).hexdigest()


class PlainText:
    """Parses nothing: the text as it is."""

    def feed(self, text: str) -> list[Piece]:
        return [text]

    def finish(self) -> list[Piece]:
        return []
