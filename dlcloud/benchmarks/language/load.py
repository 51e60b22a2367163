"""Send requests to an OpenAI-compatible server as they come in reality: at random moments, unasked.

A request's times count from the moment when it was to be sent, so that a server that is late delays nothing
that is measured. Standard library only.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

OK = 200
REQUEST_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request; all seconds from the moment when it was to be sent."""

    token_s: tuple[float, ...] = ()  # when each piece of the answer came
    tokens: int = 0  # as the server counts them, or the pieces
    end_s: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What came of all requests at one rate."""

    rate: float  # requests a second that were sent on average
    seconds: float  # from the first request to the end of the last answer
    answers: Sequence[Answer] = field(repr=False)

    @property
    def failures(self) -> list[str]:
        return [answer.failure for answer in self.answers if answer.failure]

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def first_token_ms(self) -> list[float]:
        return [1000 * answer.token_s[0] for answer in self.answers if answer.token_s]

    @property
    def between_tokens_ms(self) -> list[float]:
        return [1000 * (b - a) for answer in self.answers for a, b in pairwise(answer.token_s)]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of all do not exceed; infinite if there are none."""
    ordered = sorted(values)
    return (
        ordered[max(0, -(-round(share * 1e6) * len(ordered) // 1_000_000) - 1)] if ordered else float("inf")
    )


def arrivals(rate: float, count: int, generator: random.Random) -> list[float]:
    """Return the moments of a Poisson process, in seconds, the first at 0."""
    moments = [0.0]
    while len(moments) < count:
        moments.append(moments[-1] + generator.expovariate(rate))
    return moments


def send_load(url: str, prompts: Sequence[str], *, rate: float, generate: int, seed: int) -> LoadResult:
    """Send a request for each prompt at the moments of a Poisson process and wait for all answers.

    `url` is the server's, with its version: `http://127.0.0.1:8000/v1`.
    """
    # The seed repeats the moments; nothing here is secret.
    moments = arrivals(rate, len(prompts), random.Random(seed))  # noqa: S311
    began = time.perf_counter()
    answers = asyncio.run(_send_all(url, list(zip(moments, prompts, strict=True)), generate))
    return LoadResult(rate=rate, seconds=time.perf_counter() - began, answers=answers)


async def _send_all(url: str, requests: Sequence[tuple[float, str]], generate: int) -> list[Answer]:
    began = time.perf_counter()
    return await asyncio.gather(*(_send_at(url, began + at, prompt, generate) for at, prompt in requests))


async def _send_at(url: str, due: float, prompt: str, generate: int) -> Answer:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    body = {
        "model": "model", "prompt": prompt, "max_tokens": generate, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    times, counted = [], 0
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            async for event in _events(url, body):
                if any(choice.get("text") for choice in event.get("choices") or ()):
                    times.append(time.perf_counter() - due)
                counted = (event.get("usage") or {}).get("completion_tokens") or counted
    except (OSError, ValueError, EOFError, TimeoutError) as error:
        return Answer(failure=f"{type(error).__name__}: {error}"[:200], end_s=time.perf_counter() - due)
    failure = "" if times else "an answer without a token"
    end_s = time.perf_counter() - due
    return Answer(token_s=tuple(times), tokens=counted or len(times), end_s=end_s, failure=failure)


async def _events(url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of an answer as they arrive; ValueError if the server refuses."""
    address = urlsplit(url)
    secure = address.scheme == "https"
    port = address.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(address.hostname, port, ssl=secure or None)
    try:
        writer.write(_request(address.netloc, f"{address.path.rstrip('/')}/completions", body))
        await writer.drain()
        async for line in _lines(reader):
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield json.loads(data)
    finally:
        writer.close()


def _request(host: str, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close",
        f"Content-Length: {len(content)}",
    ]  # fmt: skip
    if key := os.environ.get("OPENAI_API_KEY"):
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + content


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of an answer's body, chunked or not, as they arrive."""
    status = await reader.readline()
    words = status.split(maxsplit=2)
    headers = await _headers(reader)
    is_ok = len(words) > 1 and words[1] == str(OK).encode()
    if not is_ok:
        text = (await reader.read(1000)).decode(errors="replace")
        raise ValueError(f"{status.decode(errors='replace').strip()}: {' '.join(text.split())}")
    rest = b""
    async for piece in _pieces(reader, chunked=b"chunked" in headers.get(b"transfer-encoding", b"")):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.strip()
    yield rest.strip()


async def _headers(reader: asyncio.StreamReader) -> dict[bytes, bytes]:
    headers = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    return headers


async def _pieces(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    while not chunked:
        piece = await reader.read(1 << 16)
        if not piece:
            return
        yield piece
    while size := int((await reader.readline()).split(b";")[0].strip() or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readline()
