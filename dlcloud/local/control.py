"""Control a running local EC2 over HTTP: decisions of AWS, made by a test or a user."""

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from dlcloud.model.errors import InstanceGoneError, LocalCloudError

CONTROL_PREFIX = "/_dlcloud/"
TOKEN_HEADER = "X-Dlcloud-Token"  # noqa: S105 - a header's name
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlClient:
    """Calls of one daemon's control pages; every method raises LocalCloudError when it is refused."""

    url: str
    token: str

    def status(self) -> dict[str, Any]:
        """Return the instances, the endpoint, the capacities, the faults and the numbers of calls."""
        return self.call("GET", "status")

    def interrupt(self, instance_id: str, grace_s: float = 120.0, *, rebalance: bool = False) -> None:
        """Give a spot interruption notice and terminate the instance after the grace; EC2 gives 120 s.

        With `rebalance`, only recommend rebalancing: the instance continues.

        Raises:
            InstanceGoneError: It ended already.
        """
        request = {"instance_id": instance_id, "grace_s": grace_s, "rebalance": rebalance}
        self.call("POST", "interrupt", request)

    def set_capacity(
        self,
        instance_type: str,
        count: int | None,
        zone: str | None = None,
        *,
        grace_s: float | None = None,
    ) -> None:
        """Limit how many instances of a type live together, in a zone or in all; a count of None removes it.

        With `grace_s`, spot instances beyond the limit get a notice with this grace, youngest first.
        """
        request = {"instance_type": instance_type, "count": count, "zone": zone, "grace_s": grace_s}
        self.call("POST", "capacity", request)

    def play_traces(
        self, traces: Sequence[Mapping[str, Any]], *, speed: float, grace_s: float = 120.0
    ) -> None:
        """Let spot capacity and prices follow traces from their first tick on; none ends it.

        Args:
            traces: Of a pool each: `{"instance_type", "zone": name or None, "metadata": {"gap_seconds"},
                "data": [obtainable instances by tick], "prices": [USD an hour by tick]}`, without prices too.
            speed: Seconds of the traces in a second; at 0 only the page `trace-position` moves them.
            grace_s: From the notice of an instance beyond what is obtainable to its end.
        """
        request = {"traces": [dict(trace) for trace in traces], "speed": speed, "grace_s": grace_s}
        self.call("POST", "trace", request)

    def set_quota(self, instance_type: str, vcpus: int | None, *, spot: bool = False) -> None:
        """Limit the running vCPUs of a type's family in one market; None restores the default."""
        self.call("POST", "quota", {"instance_type": instance_type, "vcpus": vcpus, "spot": spot})

    def set_account_plan(self, *, free: bool) -> None:
        """Put the account on AWS's Free plan, on which EC2 launches few types, or on the Paid one."""
        self.call("POST", "account-plan", {"free": free})

    def call(self, method: str, name: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a page by its name, and return what it answers."""
        if not self.token:
            raise LocalCloudError(
                f"the control token of the local EC2 at {self.url} is not known",
                "set DLCLOUD_LOCAL_TOKEN, or use the home that started it",
            )
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
        body = None if content is None else json.dumps(content)
        headers = {TOKEN_HEADER: self.token, "Content-Type": "application/json"}
        try:
            connection.request(method, CONTROL_PREFIX + name, body, headers)
            reply = connection.getresponse()
            answer: dict[str, Any] = json.loads(reply.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LocalCloudError(f"the local cloud at {self.url} does not answer: {error}") from error
        finally:
            connection.close()
        if reply.status != HTTPStatus.OK:
            is_gone = (name, reply.status) == ("interrupt", HTTPStatus.NOT_FOUND)
            kind = InstanceGoneError if is_gone else LocalCloudError
            raise kind(f"the local cloud refused {name}: {answer.get('error', reply.reason)}")
        return answer
