"""The local EC2 that another home runs, known by its address alone, as AWS is from every machine."""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from dlcloud.core.errors import LocalCloudError
from dlcloud.local.control import ControlClient
from dlcloud.local.site import LocalEndpoint

ENDPOINT_VARIABLE = "DLCLOUD_LOCAL_ENDPOINT"
TOKEN_VARIABLE = "DLCLOUD_LOCAL_TOKEN"  # noqa: S105  a variable's name
_LOOPBACK_NAMES = ("127.0.0.1", "localhost")
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSite:
    """It is used, and never started or stopped.

    Args:
        url: Where it answers, such as http://127.0.0.1:40001.
        token: What its control pages ask for; empty where they are not used.
    """

    url: str
    token: str = ""

    def find(self) -> LocalEndpoint | None:
        """Return it; None if nothing answers there.

        Raises:
            LocalCloudError: The address is none of this machine.
        """
        host, port = self._address()
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError:
            return None
        control = ControlClient(url=self.url, token=self.token)
        return LocalEndpoint(pid=None, url=self.url, started_at="", control=control)

    def start(self) -> LocalEndpoint:
        """Return it.

        Raises:
            LocalCloudError: Nothing answers there.
        """
        endpoint = self.find()
        if endpoint is None:
            raise LocalCloudError(
                f"no local EC2 answers at {self.url}, which {ENDPOINT_VARIABLE} names",
                f"dlcloud local start, where it was started; or unset {ENDPOINT_VARIABLE}",
            )
        return endpoint

    def stop(self) -> bool:
        """Refuse: it is another home's.

        Raises:
            LocalCloudError: Always.
        """
        raise LocalCloudError(
            f"the local EC2 at {self.url} was started from another home",
            f"unset {ENDPOINT_VARIABLE}, and stop it with that home's DLCLOUD_HOME",
        )

    def _address(self) -> tuple[str, int]:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if host not in _LOOPBACK_NAMES or port is None or parts.scheme != "http":
            raise LocalCloudError(
                f"{ENDPOINT_VARIABLE} is {self.url!r}: it must be the address of a local EC2",
                "for example http://127.0.0.1:40001; dlcloud local status shows it",
            )
        return host, port
