"""Drive an engine that takes requests and computes one step of all of them a call."""

from typing import Any

import numpy as np

from .generation import GenerationJob


class RequestModel:
    """What such engines share; each defines how requests are added and a step is computed."""

    def __init__(self, job: GenerationJob) -> None:
        self.job = job
        self.handles: list[Any] = []  # what keeps the requests alive
        self._number = 0

    def read_prompts(self) -> None:
        self._finish()
        self.add_requests(1)
        self._finish()

    def rewind(self) -> None:
        """End all requests, then read the prompts again up to the first token."""
        self._finish()
        self.add_requests(self.job.generate + 1)
        self.advance()

    def generate(self) -> None:
        self.advance()

    def take_number(self) -> int:
        """Return a number that no request has had."""
        self._number += 1
        return self._number

    def add_requests(self, tokens: int) -> None:
        """Add a request for every prompt, of so many new tokens."""
        raise NotImplementedError

    def advance(self) -> None:
        """Compute one step: a token for every request."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Return whether a request is unfinished."""
        raise NotImplementedError

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits (n, vocabulary) after each of n tokens."""
        raise NotImplementedError

    def _finish(self) -> None:
        while self.is_busy():
            self.advance()
        self.handles.clear()
