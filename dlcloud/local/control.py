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
        return self._call("GET", "status")

    def interrupt(self, instance_id: str, grace_s: float = 120.0, *, rebalance: bool = False) -> None:
        """Give a spot interruption notice and terminate the instance after the grace; EC2 gives 120 s.

        With `rebalance`, only recommend rebalancing: the instance goes on.

        Raises:
            InstanceGoneError: It ended already.
        """
        request = {"instance_id": instance_id, "grace_s": grace_s, "rebalance": rebalance}
        self._call("POST", "interrupt", request)

    def set_capacity(
        self,
        instance_type: str,
        count: int | None,
        zone: str | None = None,
        *,
        grace_s: float | None = None,
    ) -> None:
        """Limit how many instances of a type live at once, in a zone or in all; a count of None removes it.

        With `grace_s`, spot instances beyond the limit get a notice with this grace, youngest first.
        """
        request = {"instance_type": instance_type, "count": count, "zone": zone, "grace_s": grace_s}
        self._call("POST", "capacity", request)

    def play_traces(
        self, traces: Sequence[Mapping[str, Any]], *, speed: float, grace_s: float = 120.0
    ) -> None:
        """Let spot capacity and prices follow traces from their first tick on; none ends it.

        Args:
            traces: Of a pool each: `{"instance_type", "zone": name or None, "metadata": {"gap_seconds"},
                "data": [obtainable instances by tick], "prices": [USD an hour by tick]}`, without prices too.
            speed: Seconds of the traces in a second; at 0 only `move_trace` moves them.
            grace_s: From the notice of an instance beyond what is obtainable to its end.
        """
        request = {"traces": [dict(trace) for trace in traces], "speed": speed, "grace_s": grace_s}
        self._call("POST", "trace", request)

    def move_trace(self, seconds: float) -> None:
        """Set the position in the traces."""
        self._call("POST", "trace-position", {"seconds": seconds})

    def set_quota(self, instance_type: str, vcpus: int | None, *, spot: bool = False) -> None:
        """Limit the running vCPUs of a type's family in one market; None restores the default."""
        self._call("POST", "quota", {"instance_type": instance_type, "vcpus": vcpus, "spot": spot})

    def add_account(self, account_id: str) -> tuple[str, str]:
        """Make another account; return the id and the secret of a new access key of its administrator."""
        answer = self._call("POST", "account", {"account_id": account_id})
        return str(answer["key_id"]), str(answer["secret"])

    def set_account_plan(self, *, free: bool) -> None:
        """Put the account on AWS's Free plan, on which EC2 launches few types, or on the Paid one."""
        self._call("POST", "account-plan", {"free": free})

    def set_cache(self, *, shared: bool) -> None:
        """Let new instances share the site's `~/.cache`, or give each its own, as on EC2."""
        self._call("POST", "cache", {"shared": shared})

    def set_boot_delay(self, seconds: float) -> None:
        """Keep new instances in `pending` for this long."""
        self._call("POST", "boot-delay", {"seconds": seconds})

    def set_boot_scale(self, part: float) -> None:
        """Let new instances take this part of EC2's time from running to SSH, which depends on their type."""
        self._call("POST", "boot-scale", {"seconds": part})

    def fail_boots(self, fault: str, count: int = 1) -> None:
        """Let the next boots fail: `ends` or `no-key` while pending, or `silent`: SSH never answers."""
        self._call("POST", "boot-faults", {"fault": fault, "count": count})

    def set_minute(self, seconds: float) -> None:
        """Set the length of a minute of the timers on new instances."""
        self._call("POST", "minute", {"seconds": seconds})

    def set_apt_lock(self, seconds: float) -> None:
        """Have a job of the image hold apt's locks on new instances, for so long from their boot on."""
        self._call("POST", "apt-lock", {"seconds": seconds})

    def set_machine(self, command: str) -> None:
        """Have new instances run a shell command that boots a virtual machine, until it powers off.

        The command gets SSH_ADDRESS, at which the machine must answer, METADATA_ADDRESS, MAC_ADDRESS,
        INSTANCE_ID, and the instance's folder in DLCLOUD_ROOT; its output is the console. An empty command:
        processes again.
        """
        self._call("POST", "machine", {"command": command})

    def set_role_session(self, seconds: float) -> None:
        """Set how long new credentials of instance profiles are valid."""
        self._call("POST", "role-session", {"seconds": seconds})

    def set_latency(self, seconds: float) -> None:
        """Delay every API call."""
        self._call("POST", "latency", {"seconds": seconds})

    def set_visibility(self, longest_s: float, seed: int = 0) -> None:
        """Show new instances, security groups and launch templates late: half of this to this long.

        The delays are random, by the seed. At 0, all that is hidden appears.
        """
        self._call("POST", "visibility", {"longest_s": longest_s, "seed": seed})

    def add_fault(
        self,
        action: str,
        code: str,
        *,
        times: int | None = None,
        rate: float | None = None,
        status: int = 400,
        skip: int = 0,
        carried_out: bool = False,
    ) -> None:
        """Refuse calls of an action, or of every action ("*"), with an error code and its HTTP status.

        With `times`, only the next calls are refused; with `rate`, this share of them, 0 to 1, evenly spread;
        with `skip`, so many calls pass first. A status of 0 closes the connection without an answer. With
        `carried_out`, the call takes effect, and only its answer is lost.
        """
        fault = {"action": action, "code": code, "times": times, "rate": rate, "status": status}
        self._call("POST", "faults", {**fault, "skip": skip, "carried_out": carried_out})

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
        if reply.status != HTTPStatus.OK:
            is_gone = (name, reply.status) == ("interrupt", HTTPStatus.NOT_FOUND)
            kind = InstanceGoneError if is_gone else LocalCloudError
            raise kind(f"the local cloud refused {name}: {answer.get('error', reply.reason)}")
        return answer
