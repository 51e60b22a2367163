"""paramiko without `invoke`, which runs `Match exec` of ssh_config: imported when that is first asked for.

paramiko imports it at once, with asyncio, unittest and yaml: a third of its own start.
"""

import sys
from importlib import import_module
from types import ModuleType


class _Invoke(ModuleType):
    """Stands for `invoke` in `paramiko.config`, which calls `run` alone."""

    @staticmethod
    def run(command: str, **options: object) -> object:
        """Run a command on this machine."""
        return import_module("invoke").run(command, **options)


_is_lent = sys.modules.keys().isdisjoint({"invoke", "paramiko"})
if _is_lent:
    sys.modules["invoke"] = _Invoke("invoke")

from paramiko import (  # noqa: E402  only now
    AuthenticationException,
    Channel,
    ChannelException,
    Ed25519Key,
    PKey,
    RejectPolicy,
    SSHClient,
    SSHException,
    Transport,
)

if _is_lent:
    del sys.modules["invoke"]

__all__ = [
    "AuthenticationException",
    "Channel",
    "ChannelException",
    "Ed25519Key",
    "PKey",
    "RejectPolicy",
    "SSHClient",
    "SSHException",
    "Transport",
]
