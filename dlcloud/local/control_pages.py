"""The pages under /_dlcloud/: what AWS would decide by itself, decided by whoever holds the token."""

import hmac
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from dlcloud.core.instance import Market
from dlcloud.local.control import CONTROL_PREFIX, TOKEN_HEADER
from dlcloud.local.faults import Disturbances, Fault
from dlcloud.local.machines import Machines
from dlcloud.local.quotas import VcpuQuotas
from dlcloud.local.state import SiteState

_TOKEN_KEY = "HTTP_" + TOKEN_HEADER.upper().replace("-", "_")

Answer = tuple[int, dict[str, Any]]


class ControlPages:
    """Answers the control calls of one site.

    Args:
        state: The daemon's state; set before the first call.
        machines: The instances.
        quotas: How many vCPUs of them there may be.
        disturbances: What API calls meet.
        end: Ends the daemon, from any thread.
    """

    def __init__(
        self,
        *,
        machines: Machines,
        quotas: VcpuQuotas,
        disturbances: Disturbances,
        end: Callable[[], None],
    ) -> None:
        self.state: SiteState | None = None
        self._machines = machines
        self._quotas = quotas
        self._disturbances = disturbances
        self._end = end
        self._pages: dict[tuple[str, str], Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            ("GET", "status"): self._status,
            ("GET", "calls"): lambda _: {"calls": disturbances.calls()},
            ("DELETE", "calls"): lambda _: disturbances.reset_calls(),
            ("POST", "interrupt"): self._interrupt,
            ("POST", "capacity"): self._capacity,
            ("POST", "quota"): self._quota,
            ("POST", "boot-delay"): self._boot_delay,
            ("POST", "minute"): self._minute,
            ("POST", "role-session"): self._role_session,
            ("POST", "latency"): self._latency,
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): lambda _: disturbances.clear(),
            ("POST", "shutdown"): lambda _: end(),
        }

    def answer(self, environ: dict[str, Any]) -> Answer:
        """Answer one call; without the token it learns nothing."""
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
            "instances": self._machines.report(),
            "capacities": self._machines.capacity.report(),
            "quotas": self._quotas.limits(),
            "faults": self._disturbances.report(),
            "latency_s": self._disturbances.latency_s,
            "boot_delay_s": self._machines.boot_delay_s,
            "calls": self._disturbances.calls(),
        }

    def _interrupt(self, asked: dict[str, Any]) -> None:
        instance_id = str(asked["instance_id"])
        grace_s = _seconds(asked.get("grace_s", 120.0))
        if not self._machines.interrupt(instance_id, grace_s=grace_s, rebalance=bool(asked.get("rebalance"))):
            raise LookupError(f"no instance {instance_id} is pending or running")

    def _capacity(self, asked: dict[str, Any]) -> None:
        kind, zone = str(asked["instance_type"]), asked.get("zone")
        count = None if asked.get("count") is None else int(asked["count"])
        if count is not None and count < 0:
            raise ValueError("a capacity is 0 or more")
        self._machines.capacity.limit(kind, zone, count)
        if count is not None and asked.get("grace_s") is not None:
            self._machines.shrink_to_capacity(kind, zone, count, _seconds(asked["grace_s"]))

    def _quota(self, asked: dict[str, Any]) -> None:
        vcpus = None if asked.get("vcpus") is None else int(asked["vcpus"])
        if vcpus is not None and vcpus < 0:
            raise ValueError("a quota is 0 or more")
        market = Market.SPOT if asked.get("spot") else Market.ON_DEMAND
        self._quotas.limit(str(asked["instance_type"]), market, vcpus)

    def _boot_delay(self, asked: dict[str, Any]) -> None:
        self._machines.boot_delay_s = _seconds(asked["seconds"])

    def _minute(self, asked: dict[str, Any]) -> None:
        self._machines.minute_s = _seconds(asked["seconds"])

    def _role_session(self, asked: dict[str, Any]) -> None:
        self._machines.roles.session_s = _seconds(asked["seconds"])

    def _latency(self, asked: dict[str, Any]) -> None:
        self._disturbances.latency_s = _seconds(asked["seconds"])

    def _add_fault(self, asked: dict[str, Any]) -> None:
        times, rate = asked.get("times"), asked.get("rate")
        if rate is not None and not 0.0 <= float(rate) <= 1.0:
            raise ValueError("a rate is 0 to 1")
        fault = Fault(
            action=str(asked["action"]),
            code=str(asked["code"]),
            status=int(asked.get("status") or HTTPStatus.BAD_REQUEST),
            times=None if times is None else int(times),
            rate=None if rate is None else float(rate),
        )
        self._disturbances.add(fault)


def _seconds(value: object) -> float:
    seconds = float(str(value))
    if not 0.0 <= seconds < float("inf"):
        raise ValueError("a time is 0 s or more")
    return seconds
