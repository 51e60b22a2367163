"""The pages under /_dlcloud/: decisions of AWS, made by a client that has the control token."""

import hmac
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from dlcloud.local.api.faults import Fault, FaultInjector, Visibility
from dlcloud.local.capacity.pools import VcpuQuotas
from dlcloud.local.capacity.spot_market import SpotTrace
from dlcloud.local.control import CONTROL_PREFIX, TOKEN_HEADER
from dlcloud.local.ec2.instances import BootFault, SiteInstances
from dlcloud.local.iam.authorization import InstanceRoles, add_administrator
from dlcloud.local.site_files import SiteState
from dlcloud.model.instance import Market

_TOKEN_KEY = "HTTP_" + TOKEN_HEADER.upper().replace("-", "_")


class ControlPages:
    """Answers the control calls of one site.

    `state` is the daemon's state, set before the first call; `end` ends the daemon, from any thread.
    """

    def __init__(
        self,
        *,
        instances: SiteInstances,
        roles: InstanceRoles,
        quotas: VcpuQuotas,
        faults: FaultInjector,
        visibility: Visibility,
        end: Callable[[], None],
    ) -> None:
        self.state: SiteState | None = None
        self._instances = instances
        self._quotas = quotas
        self._faults = faults
        self._visibility = visibility
        # Durations that a client may set: the object and its attribute, by the name of the page.
        self._durations: dict[str, tuple[object, str]] = {
            "boot-delay": (instances, "boot_delay_s"),
            "minute": (instances, "minute_s"),
            "apt-lock": (instances, "apt_lock_s"),
            "role-session": (roles, "session_s"),
            "latency": (faults, "latency_s"),
        }
        self._pages: dict[tuple[str, str], Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            ("GET", "status"): self._status,
            ("GET", "calls"): lambda _: {"calls": faults.calls()},
            ("DELETE", "calls"): lambda _: faults.reset_calls(),
            ("POST", "interrupt"): self._interrupt,
            ("POST", "capacity"): self._set_capacity,
            ("POST", "trace"): self._play_traces,
            ("POST", "trace-position"): lambda request: instances.spot_market.move_to(
                _seconds(request["seconds"])
            ),
            ("POST", "quota"): self._set_quota,
            ("POST", "account"): self._add_account,
            ("POST", "account-plan"): self._set_account_plan,
            ("POST", "cache"): self._set_cache,
            ("POST", "faults"): self._add_fault,
            ("POST", "visibility"): lambda request: visibility.delay(
                _seconds(request["longest_s"]), int(request.get("seed") or 0)
            ),
            ("POST", "boot-faults"): self._add_boot_faults,
            ("DELETE", "faults"): lambda _: faults.clear(),
            ("POST", "machine"): self._set_machine,
            ("POST", "shutdown"): lambda _: end(),
        }

    def answer(self, environ: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer one call; without the token it is refused."""
        if not self.is_known(environ):
            return HTTPStatus.FORBIDDEN, {"error": "the control token is missing or wrong"}
        method, name = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(CONTROL_PREFIX)
        try:
            request = json.loads(environ["wsgi.input"].read() or b"{}")
            if method == "POST" and name in self._durations:
                setattr(*self._durations[name], _seconds(request["seconds"]))
                return HTTPStatus.OK, {}
            if (method, name) not in self._pages:
                return HTTPStatus.NOT_FOUND, {"error": f"there is no page {name}"}
            return HTTPStatus.OK, self._pages[method, name](request) or {}
        except LookupError as error:
            return HTTPStatus.NOT_FOUND, {"error": f"unknown: {error}"}
        except (TypeError, ValueError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}

    def is_known(self, environ: dict[str, Any]) -> bool:
        """True if a request has the token."""
        token = "" if self.state is None else self.state.token
        return bool(token) and hmac.compare_digest(environ.get(_TOKEN_KEY, "").encode(), token.encode())

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        state = self.state
        return {
            "schema": 1,
            "endpoint": None if state is None else state.url,
            "pid": None if state is None else state.pid,
            "started_at": None if state is None else state.started_at,
            "isolation": self._instances.isolation.report(),
            "instances": self._instances.report(),
            "capacities": self._instances.capacity.report(),
            "trace": self._instances.spot_market.report(),
            "quotas": self._quotas.limits(),
            "faults": self._faults.report(),
            "latency_s": self._faults.latency_s,
            "visibility_s": self._visibility.longest_s,
            "boot_delay_s": self._instances.boot_delay_s,
            "calls": self._faults.calls(),
        }

    def _interrupt(self, request: dict[str, Any]) -> None:
        instance_id, rebalance = str(request["instance_id"]), bool(request.get("rebalance"))
        grace_s = _seconds(request.get("grace_s", 120.0))
        if not self._instances.interrupt(instance_id, grace_s=grace_s, rebalance=rebalance):
            raise LookupError(f"no instance {instance_id} is pending or running")

    def _set_capacity(self, request: dict[str, Any]) -> None:
        name, zone = str(request["instance_type"]), request.get("zone")
        count = _count(request.get("count"), "capacity")
        if count is None:
            self._instances.capacity.remove_limits(name, zone)
        else:
            self._instances.capacity.set_limit(name, zone, count)
        if count is not None and request.get("grace_s") is not None:
            self._instances.shrink_to_capacity(name, zone, count, _seconds(request["grace_s"]))

    def _play_traces(self, request: dict[str, Any]) -> None:
        traces = [SpotTrace.from_values(values) for values in request["traces"]]
        self._instances.spot_market.play(
            traces, speed=_seconds(request["speed"]), grace_s=_seconds(request["grace_s"])
        )

    def _set_quota(self, request: dict[str, Any]) -> None:
        market = Market.SPOT if request.get("spot") else Market.ON_DEMAND
        self._quotas.set_limit(str(request["instance_type"]), market, _count(request.get("vcpus"), "quota"))

    def _add_boot_faults(self, request: dict[str, Any]) -> None:
        count = _count(request.get("count", 1), "number of boots") or 0
        self._instances.boots.fail_next(BootFault(request["fault"]), count)

    def _add_account(self, request: dict[str, Any]) -> dict[str, Any]:
        key_id, secret = add_administrator(str(request["account_id"]))
        return {"key_id": key_id, "secret": secret}

    def _set_account_plan(self, request: dict[str, Any]) -> None:
        self._quotas.account_plan.is_free = bool(request["free"])

    def _set_cache(self, request: dict[str, Any]) -> None:
        self._instances.shares_cache = bool(request["shared"])

    def _set_machine(self, request: dict[str, Any]) -> None:
        self._instances.machine = str(request["command"])

    def _add_fault(self, request: dict[str, Any]) -> None:
        times, rate = request.get("times"), request.get("rate")
        if rate is not None and not 0.0 <= float(rate) <= 1.0:
            raise ValueError("a rate is 0 to 1")
        fault = Fault(
            action=str(request["action"]),
            code=str(request["code"]),
            status=int(request.get("status", HTTPStatus.BAD_REQUEST)),
            times=None if times is None else int(times),
            rate=None if rate is None else float(rate),
            skip=int(request.get("skip") or 0),
            carried_out=bool(request.get("carried_out")),
        )
        self._faults.add(fault)


def _count(value: object, name: str) -> int | None:
    """Return a limit; None for none."""
    if value is None:
        return None
    count = int(str(value))
    if count < 0:
        raise ValueError(f"a {name} is 0 or more")
    return count


def _seconds(value: object) -> float:
    seconds = float(str(value))
    if not 0.0 <= seconds < float("inf"):
        raise ValueError("a time is 0 s or more")
    return seconds
