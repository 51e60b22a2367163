"""Serve a language model and find the highest rate of requests that meets a goal.

Requests are sent to an OpenAI-compatible server as they come in reality: at random moments, without waiting
for each other. A request's times count from the moment at which it was to be sent, so that a slow server
delays nothing that is measured. Standard library only.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ..harness import program, usage
from ..harness.case import Finish, Slice, VariantError, WarmUp
from ..harness.schema import Measurement, MetricName
from .networks import read_text

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


START_TIMEOUT_S = 900.0
SHARE = 0.95
FIRST_REQUESTS = 2
END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingGoal:
    """The load that a server is sent and what is asked of it."""

    rates: Sequence[float]  # requests a second, ascending
    requests: int  # at each rate
    prompt: int  # bytes of a prompt's text: tokens, where a token is a byte
    generate: int  # tokens of an answer
    first_token_ms: float  # by when 95 % of requests are to have their first token
    seed: int

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "ServingGoal":
        return cls(
            rates=arguments.rate,
            requests=arguments.requests,
            prompt=arguments.prompt[0],
            generate=arguments.generate[0],
            first_token_ms=arguments.first_token_ms,
            seed=arguments.seed,
        )

    def is_met(self, result: LoadResult) -> bool:
        return not result.failures and percentile(result.first_token_ms, SHARE) <= self.first_token_ms


@dataclass(slots=True, kw_only=True)
class ServingVariant:
    """One server under load; its throughput is that at the highest rate that meets the goal."""

    name: str
    goal: ServingGoal
    endpoint: str  # URL with its version
    command: Sequence[str] = ()  # starts the server; none if it runs already
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _log: Path | None = field(init=False, default=None)
    _sent: int = field(init=False, default=0)
    _rate: float = field(init=False, default=0.0)
    _tried: list[dict[str, float]] = field(init=False, default_factory=list)
    _measured: list[LoadResult] = field(init=False, default_factory=list)

    metric: ClassVar[MetricName] = MetricName.THROUGHPUT
    unit: ClassVar[str] = "tokens/s"
    process_spread: ClassVar[float] = 0.0
    expected_bytes: ClassVar[int] = 0

    @classmethod
    def at(cls, endpoint: str, arguments: argparse.Namespace) -> "ServingVariant":
        """Make one of a server that runs already."""
        return cls(name="endpoint", goal=ServingGoal.of(arguments), endpoint=endpoint)

    @classmethod
    def starting(
        cls, *, name: str, command: Sequence[str], values: Mapping[str, str], arguments: argparse.Namespace
    ) -> "ServingVariant":
        """Make one of a server that is started; `values` are filled into its command."""
        port = _free_port()
        goal = ServingGoal.of(arguments)
        context = max(512, 2 * (goal.prompt + goal.generate))
        filled = {
            **values, "python": sys.executable, "port": port, "threads": arguments.threads,
            "context": context,
        }  # fmt: skip
        return cls(
            name=name,
            goal=goal,
            endpoint=f"http://127.0.0.1:{port}/v1",
            command=[word.format(**filled) for word in command],
            environment=program.environment({"OMP_NUM_THREADS": str(arguments.threads)}),
        )

    def start(self) -> Mapping[str, Any]:
        if self.command:
            self._log = Path(tempfile.mkstemp(prefix="dlcloud-server-")[1])
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self.command, stdout=log, stderr=log, env=dict(self.environment), start_new_session=True
                )
        self._wait_until_ready()
        return {
            "prompt_bytes": self.goal.prompt,
            "generated_tokens": self.goal.generate,
            "first_token_goal_ms": self.goal.first_token_ms,
        }

    def warm_up(self, limit_s: float) -> WarmUp:  # noqa: ARG002 - the rates decide how long it takes
        began = time.monotonic()
        self._send(self.goal.rates[0], FIRST_REQUESTS)
        for rate in self.goal.rates:
            result = self._send(rate, self.goal.requests)
            if result.failures:
                raise VariantError(f"{len(result.failures)} requests failed: {result.failures[0]}")
            self._tried.append({"rate": rate, **_latencies(result)})
            if not self.goal.is_met(result):
                break
            self._rate = rate
        if not self._rate:
            reached = self._tried[0]["first_token_p95_ms"]
            raise VariantError(
                f"no rate meets the goal: at {self.goal.rates[0]:g} requests/s 95 % have a first token "
                f"in {reached:.0f} ms, not {self.goal.first_token_ms:g} ms"
            )
        return WarmUp(steps=self._sent, seconds=time.monotonic() - began, settled=True)

    def measure(self, seconds: float) -> Slice:  # noqa: ARG002 - a fixed number of requests is sent
        result = self._send(self._rate, self.goal.requests)
        if result.failures:
            raise VariantError(f"{len(result.failures)} requests failed: {result.failures[0]}")
        self._measured.append(result)
        return Slice(
            value=result.tokens_per_s,
            items=sum(answer.tokens for answer in result.answers),
            seconds=result.seconds,
            latencies_ms=tuple(round(value, 3) for value in result.first_token_ms[:250]),
        )

    def cpu_s(self) -> float:
        return usage.process_cpu_s(self._process.pid) if self._process else 0.0

    def peak_bytes(self) -> int:
        return usage.memory_of(self._process.pid, "VmHWM") if self._process else 0

    def finish(self) -> Finish:
        peak = self.peak_bytes()
        memory: dict[str, Measurement] = {}
        if peak:
            memory[MetricName.PEAK_MEMORY] = Measurement.exact(peak / usage.MIB, "MiB")
        first = [value for result in self._measured for value in result.first_token_ms]
        facts = {
            "requests_per_s": self._rate,
            "requests_measured": len(first),
            "first_token_p95_ms": round(percentile(first, SHARE), 3),
            "between_tokens_p50_ms": round(median(self._between() or [0.0]), 3),
            "between_tokens_p95_ms": round(percentile(self._between() or [0.0], SHARE), 3),
            "goal_met": percentile(first, SHARE) <= self.goal.first_token_ms,
            "rates_tried": self._tried,
        }
        return Finish(metrics=memory, outputs=[], facts=facts)

    def close(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(END_TIMEOUT_S)
        if self._log is not None:
            self._log.unlink(missing_ok=True)

    def _between(self) -> list[float]:
        return [value for result in self._measured for value in result.between_tokens_ms]

    def _send(self, rate: float, count: int) -> LoadResult:
        """Send requests whose texts differ, also from those before: no server knows their beginnings."""
        text = read_text()[0].decode(errors="ignore").encode("ascii", "ignore").decode()
        prompts = []
        for _ in range(count):
            self._sent += 1
            start = (7919 * self._sent) % max(1, len(text) - self.goal.prompt)
            prompts.append(f"{self._sent} {text[start:]}"[: self.goal.prompt])
        return send_load(
            self.endpoint, prompts, rate=rate, generate=self.goal.generate, seed=self.goal.seed + self._sent
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.endpoint):
            if self._process is not None and self._process.poll() is not None:
                raise VariantError(f"its server ended with status {self._process.returncode}: {self._tail()}")
            if self._process is None or time.monotonic() > deadline:
                raise VariantError(f"no server answers at {self.endpoint}")
            time.sleep(0.2)

    def _tail(self) -> str:
        return " ".join(usage.read_text(self._log).split())[-400:] if self._log else ""


def _latencies(result: LoadResult) -> dict[str, float]:
    return {
        "tokens_per_s": round(result.tokens_per_s, 3),
        "first_token_p50_ms": round(percentile(result.first_token_ms, 0.5), 3),
        "first_token_p95_ms": round(percentile(result.first_token_ms, SHARE), 3),
        "between_tokens_p95_ms": round(percentile(result.between_tokens_ms or [0.0], SHARE), 3),
    }


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint.rstrip('/')}/models", timeout=5):  # noqa: S310 - http(s) only
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
