"""The pages under /_dlcloud/: decisions of AWS, made by a client that has the control token."""

import hmac
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from dlcloud.core.instance import Market
from dlcloud.local.capacity import VcpuQuotas
from dlcloud.local.control import CONTROL_PREFIX, TOKEN_HEADER
from dlcloud.local.faults import Fault, FaultInjector
from dlcloud.local.instances import Instances
from dlcloud.local.roles import InstanceRoles
from dlcloud.local.site import SiteState

_TOKEN_KEY = "HTTP_" + TOKEN_HEADER.upper().replace("-", "_")

Answer = tuple[int, dict[str, Any]]


class ControlPages:
    """Answers the control calls of one site.

    `state` is the daemon's state, set before the first call; `end` ends the daemon, from any thread.
    """

    def __init__(
        self,
        *,
        instances: Instances,
        roles: InstanceRoles,
        quotas: VcpuQuotas,
        faults: FaultInjector,
        end: Callable[[], None],
    ) -> None:
        self.state: SiteState | None = None
        self._instances = instances
        self._roles = roles
        self._quotas = quotas
        self._faults = faults
        self._pages: dict[tuple[str, str], Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            ("GET", "status"): self._status,
            ("GET", "calls"): lambda _: {"calls": faults.calls()},
            ("DELETE", "calls"): lambda _: faults.reset_calls(),
            ("POST", "interrupt"): self._interrupt,
            ("POST", "capacity"): self._capacity,
            ("POST", "quota"): self._quota,
            ("POST", "boot-delay"): self._boot_delay,
            ("POST", "minute"): self._minute,
            ("POST", "role-session"): self._role_session,
            ("POST", "latency"): self._latency,
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): lambda _: faults.clear(),
            ("POST", "shutdown"): lambda _: end(),
        }

    def answer(self, environ: dict[str, Any]) -> Answer:
        """Answer one call; without the token it is refused."""
        token = "" if self.state is None else self.state.token
        if not token or not hmac.compare_digest(environ.get(_TOKEN_KEY, "").encode(), token.encode()):
            return HTTPStatus.FORBIDDEN, {"error": "the control token is missing or wrong"}
        name = environ["PATH_INFO"].removeprefix(CONTROL_PREFIX)
        page = self._pages.get((environ["REQUEST_METHOD"], name))
        if page is None:
            return HTTPStatus.NOT_FOUND, {"error": f"there is no page {name}"}
        try:
            return HTTPStatus.OK, page(json.loads(environ["wsgi.input"].read() or b"{}")) or {}
        except LookupError as error:
            return HTTPStatus.NOT_FOUND, {"error": f"unknown: {error}"}
        except (TypeError, ValueError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        state = self.state
        return {
            "schema": 1,
            "endpoint": None if state is None else state.url,
            "pid": None if state is None else state.pid,
            "started_at": None if state is None else state.started_at,
            "instances": self._instances.report(),
            "capacities": self._instances.capacity.report(),
            "quotas": self._quotas.limits(),
            "faults": self._faults.report(),
            "latency_s": self._faults.latency_s,
            "boot_delay_s": self._instances.boot_delay_s,
            "calls": self._faults.calls(),
        }

    def _interrupt(self, request: dict[str, Any]) -> None:
        instance_id = str(request["instance_id"])
        grace_s = _seconds(request.get("grace_s", 120.0))
        if not self._instances.interrupt(
            instance_id, grace_s=grace_s, rebalance=bool(request.get("rebalance"))
        ):
            raise LookupError(f"no instance {instance_id} is pending or running")

    def _capacity(self, request: dict[str, Any]) -> None:
        name, zone = str(request["instance_type"]), request.get("zone")
        count = None if request.get("count") is None else int(request["count"])
        if count is not None and count < 0:
            raise ValueError("a capacity is 0 or more")
        self._instances.capacity.set_limit(name, zone, count)
        if count is not None and request.get("grace_s") is not None:
            self._instances.shrink_to_capacity(name, zone, count, _seconds(request["grace_s"]))

    def _quota(self, request: dict[str, Any]) -> None:
        vcpus = None if request.get("vcpus") is None else int(request["vcpus"])
        if vcpus is not None and vcpus < 0:
            raise ValueError("a quota is 0 or more")
        market = Market.SPOT if request.get("spot") else Market.ON_DEMAND
        self._quotas.set_limit(str(request["instance_type"]), market, vcpus)

    def _boot_delay(self, request: dict[str, Any]) -> None:
        self._instances.boot_delay_s = _seconds(request["seconds"])

    def _minute(self, request: dict[str, Any]) -> None:
        self._instances.minute_s = _seconds(request["seconds"])

    def _role_session(self, request: dict[str, Any]) -> None:
        self._roles.session_s = _seconds(request["seconds"])

    def _latency(self, request: dict[str, Any]) -> None:
        self._faults.latency_s = _seconds(request["seconds"])

    def _add_fault(self, request: dict[str, Any]) -> None:
        times, rate = request.get("times"), request.get("rate")
        if rate is not None and not 0.0 <= float(rate) <= 1.0:
            raise ValueError("a rate is 0 to 1")
        fault = Fault(
            action=str(request["action"]),
            code=str(request["code"]),
            status=int(request.get("status") or HTTPStatus.BAD_REQUEST),
            times=None if times is None else int(times),
            rate=None if rate is None else float(rate),
        )
        self._faults.add(fault)


def _seconds(value: object) -> float:
    seconds = float(str(value))
    if not 0.0 <= seconds < float("inf"):
        raise ValueError("a time is 0 s or more")
    return seconds
