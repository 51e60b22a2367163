"""Control a running local EC2 over HTTP: decisions of AWS, made by a test or a user."""

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dlcloud.core.errors import LocalCloudError

CONTROL_PREFIX = "/_dlcloud/"
TOKEN_HEADER = "X-Dlcloud-Token"  # noqa: S105 - a header's name
_TIMEOUT_S = 30.0
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlClient:
    """Calls of one daemon's control pages; every method raises LocalCloudError when it is refused."""

    url: str
    token: str

    def status(self) -> dict[str, Any]:
        """Return the instances, the endpoint, the capacities, the faults and the numbers of calls."""
        return self._call("GET", "status")

    def interrupt(self, instance_id: str, grace_s: float = 120.0, *, rebalance: bool = False) -> None:
        """Give a spot interruption notice and end the instance after the grace.

        Args:
            instance_id: A spot or on-demand instance that is pending or running.
            grace_s: Seconds from the notice to the end; EC2 gives 120.
            rebalance: Only recommend rebalancing; the instance goes on.
        """
        self._call(
            "POST", "interrupt", {"instance_id": instance_id, "grace_s": grace_s, "rebalance": rebalance}
        )

    def set_capacity(
        self,
        instance_type: str,
        count: int | None,
        zone: str | None = None,
        *,
        grace_s: float | None = None,
    ) -> None:
        """Limit how many instances of a type may live at once, in all zones or in one.

        Args:
            instance_type: Such as "c7i.4xlarge".
            count: The limit; None removes it.
            zone: An Availability Zone; None limits the type in all zones together.
            grace_s: Where given, spot instances beyond the limit get a notice with it, youngest first.
        """
        content = {"instance_type": instance_type, "count": count, "zone": zone, "grace_s": grace_s}
        self._call("POST", "capacity", content)

    def set_quota(self, instance_type: str, vcpus: int | None, *, spot: bool = False) -> None:
        """Limit how many vCPUs of a type's family the account may have running, as a vCPU quota does.

        Args:
            instance_type: Such as "c7i.4xlarge"; all types of its family count.
            vcpus: The limit; None sets it back.
            spot: The quota of spot instances instead of that of on-demand ones.
        """
        self._call("POST", "quota", {"instance_type": instance_type, "vcpus": vcpus, "spot": spot})

    def set_boot_delay(self, seconds: float) -> None:
        """Keep new instances in `pending` for this long."""
        self._call("POST", "boot-delay", {"seconds": seconds})

    def set_minute(self, seconds: float) -> None:
        """Set the length of a minute of the timers on new instances."""
        self._call("POST", "minute", {"seconds": seconds})

    def set_role_session(self, seconds: float) -> None:
        """Set how long new credentials of instance profiles are valid."""
        self._call("POST", "role-session", {"seconds": seconds})

    def set_latency(self, seconds: float) -> None:
        """Delay every API call."""
        self._call("POST", "latency", {"seconds": seconds})

    def add_fault(
        self,
        action: str,
        code: str,
        *,
        times: int | None = None,
        rate: float | None = None,
        status: int = 400,
    ) -> None:
        """Refuse calls of an action.

        Args:
            action: Such as "RunInstances", or "*" for every one.
            code: The error code, such as "RequestLimitExceeded".
            times: Refuse this many calls, then no more.
            rate: Refuse this share of the calls, 0 to 1, evenly spread. With neither, every call is refused.
            status: The HTTP status that the error comes with.
        """
        fault = {"action": action, "code": code, "times": times, "rate": rate, "status": status}
        self._call("POST", "faults", fault)

    def clear_faults(self) -> None:
        self._call("DELETE", "faults")

    def calls(self) -> dict[str, int]:
        """Return the number of calls by action, refused calls included."""
        calls = self._call("GET", "calls")["calls"]
        return {str(action): int(count) for action, count in calls.items()}

    def reset_calls(self) -> None:
        self._call("DELETE", "calls")

    def _call(self, method: str, name: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
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
        if reply.status != _OK:
            raise LocalCloudError(f"the local cloud refused {name}: {answer.get('error', reply.reason)}")
        return answer
