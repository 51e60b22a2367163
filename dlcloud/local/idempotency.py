"""Client tokens: a request repeated with its token gets the first reply again and changes nothing."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_REMEMBERED = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole HTTP reply."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True, kw_only=True)
class _Known:
    """What was asked under a token, and the reply once there is one."""

    digest: bytes
    reply: Reply | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class ClientTokens:
    """The tokens seen lately, by region, action and token; the oldest of many are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()

    def once(
        self, key: tuple[str, str, str], asked: Iterable[tuple[str, str]], answer: Callable[[], Reply]
    ) -> Reply | None:
        """Answer a request, or repeat the reply of the first one; None if that one asked for something else.

        Only a success is remembered: a refused request may be repeated with the same token.
        """
        digest = hashlib.sha256(repr(sorted(asked)).encode()).digest()
        with self._lock:
            known = self._known.setdefault(key, _Known(digest=digest))
            self._known.move_to_end(key)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        with known.lock:
            if known.reply is not None:
                return known.reply if known.digest == digest else None
            known.digest = digest
            reply = answer()
            known.reply = reply if reply.status < 300 else None  # noqa: PLR2004 - HTTP's successes
            return reply
