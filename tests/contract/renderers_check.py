"""Why the gateway does not render through the `renderers` package: each reason of docs/templates.md, tried.

python tests/contract/renderers_check.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

import renderers
import tokens_kit as kit
from test_templates_renderers import DIFFERENT, both

from art.testing.tiny import tiny_model
from art.tokens.bridge import tail_tokens

ROUNDS = 200
"""Of the timing; it takes well under a second."""
NETWORK = "it could not be made without a network"
LOADS = (
    "import sys, renderers; print(*(name for name in ('httpx', 'openai') if name in sys.modules), sep=', ')"
)


def by_name() -> Iterator[str]:
    """Which renderer a model gets by the name it was loaded under."""
    from transformers import AutoTokenizer

    known = renderers.base.MODEL_RENDERER_MAP
    yield f"a model is found by its hub name: Qwen/Qwen3-8B is {known['Qwen/Qwen3-8B']}, of {len(known)} that are known"
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(tiny_model(Path(folder, "my-qwen3"), warm=False))
        found = renderers.create_renderer(tokenizer)
    after = found.bridge_to_next_turn([1], [2], [{"role": "user", "content": "So?"}])
    yield f"a folder gets {type(found).__name__}, for which what follows an answer is {after}"


def gpt_oss() -> str:
    """What making its renderer takes."""
    ours, _ = both("qwen3")
    try:
        renderers.create_renderer(ours.tokenizer, renderers.GptOssRendererConfig())
    except Exception as error:  # noqa: BLE001 - whatever it raises without a network
        return f"{NETWORK} ({type(error).__name__})"
    return "it was made: this machine has a network, or the vocabulary"


def microseconds() -> tuple[float, float]:
    """For what follows the tenth answer of a conversation with Qwen 3: ours, theirs."""
    ours, theirs = both("qwen3")
    history = [kit.user("Hi?")]
    for number in range(9):
        history += [kit.assistant(f"Answer {number}."), kit.user("So?")]
    tail = [kit.user("And then?")]
    prompt = ours.tokens(history)
    stop = min(ours.tokenizer.stop_token_ids)
    sampled = [*ours.tokenizer.encode("Yes."), stop]
    answered = [*history, kit.assistant("Yes.")]
    new = ours.messages(tail)

    def we() -> list[int]:
        return tail_tokens(ours, answered, tail, last_token=stop)

    def they() -> list[int]:
        found = theirs.bridge_to_next_turn(prompt, sampled, new)
        return list(found.token_ids[len(prompt) + len(sampled) :])

    assert we() == they()

    def cost(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, timer=time.process_time, number=ROUNDS, repeat=5)) / ROUNDS * 1e6

    return cost(we), cost(they)


def lines() -> Iterator[str]:
    """What is so in the installed release, on every machine."""
    yield f"renderers {version('renderers')}"
    loaded = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True).stdout
    yield f"importing it loads {loaded.strip()}"
    yield from by_name()
    for name in dict.fromkeys(name for name, _ in DIFFERENT):
        kinds = [kind for other, kind in DIFFERENT if other == name]
        yield f"{name} differs from its template in {', '.join(kinds)}"


def main() -> None:
    """Print that, and what depends on the machine."""
    print(*lines(), sep="\n")
    print(f"GPT-OSS: {gpt_oss()}")
    ours, theirs = microseconds()
    print(
        f"what follows the tenth answer of Qwen 3 takes {ours:.0f} microseconds of computing here, {theirs:.0f} there"
    )


if __name__ == "__main__":
    main()
