"""A fake upstream for bench_gateway: an OpenAI chat stream of 64 tokens, one every 20 ms, from one asyncio process.

`python benchmarks/gateway_fake.py DELAY_MS` prints its port and serves until its stdin closes. Every request answers
the same text at the same pace, streaming or not, so that what a gateway before it adds is all that differs.
"""

from __future__ import annotations

import asyncio
import json
import sys

TOKENS = 64
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": [choice]}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


async def answer(writer: asyncio.StreamWriter, stream: bool, delay: float) -> None:
    if not stream:
        await asyncio.sleep(delay * TOKENS)
        message = {"role": "assistant", "content": "tick " * TOKENS}
        usage = {"prompt_tokens": 9, "completion_tokens": TOKENS, "total_tokens": 9 + TOKENS}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "fake", "usage": usage}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        writer.write(HEAD % b"application/json" + chunk(json.dumps(body).encode()) + chunk(b""))
        return
    writer.write(HEAD % b"text/event-stream" + chunk(event({"role": "assistant", "content": ""})))
    for _ in range(TOKENS):
        await asyncio.sleep(delay)
        writer.write(chunk(event({"content": "tick "})))
    writer.write(chunk(event({}, "stop") + b"data: [DONE]\n\n") + chunk(b""))


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            await answer(writer, bool(body.get("stream")), delay)
            await writer.drain()
            if "connection: close" in lines:
                return
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def main() -> None:
    delay = float(sys.argv[1]) / 1000
    server = await asyncio.start_server(lambda r, w: serve_one(r, w, delay), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
