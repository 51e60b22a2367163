"""Spot Instance requests of one site: open, fulfilled, cancelled, and persistent ones fulfilled again.

Source: EC2 user guide, "Create a Spot Instance request", "Cancel a Spot Instance request" and "Get the status
of a Spot Instance request".
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.core import TaggedEC2Resource

from dlcloud.local.ec2.filters import Table

ONE_TIME, PERSISTENT = "one-time", "persistent"
PRICE_TOO_LOW = "SpotMaxPriceTooLow"
_EVALUATION_S = 0.5
_SHOWN_AFTER_END = timedelta(hours=1)
# The status of an open request by the error code of its launch.
_WAITING = {
    PRICE_TOO_LOW: "price-too-low",
    "InsufficientInstanceCapacity": "capacity-not-available",
    "InsufficientAddressCapacity": "capacity-not-available",
    "MaxSpotInstanceCountExceeded": "constraint-not-fulfillable",
}
_MESSAGES = {
    "pending-evaluation": "Your Spot request has been submitted for review, and is pending evaluation.",
    "fulfilled": "Your spot request is fulfilled.",
    "request-canceled-and-instance-running": (
        "Your Spot request is canceled, but your instance(s) are still running."
    ),
    "canceled-before-fulfillment": "Your Spot request is canceled before it was fulfilled.",
    "schedule-expired": "Your Spot request has expired before it was fulfilled.",
    "instance-terminated-by-user": "Spot Instance terminated due to user-initiated termination.",
    "instance-terminated-no-capacity": "Your Spot Instance was terminated because there is no more capacity.",
    "marked-for-termination": "Your Spot Instance is marked for termination.",
}

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class SpotRequest(TaggedEC2Resource):
    """A request for one spot instance.

    Args:
        ec2_backend: moto's EC2 of its region.
        type: `one-time` or `persistent`.
        spot_price: The most that an hour may cost, in USD, as text.
        launch_specification: What DescribeSpotInstanceRequests shows of the launch.
        launch: Launches an instance for it; raises EC2ClientError.
        instance: moto's instance that fulfils it.
    """

    ec2_backend: Any
    type: str
    spot_price: str
    launch_specification: dict[str, Any]
    launch: Callable[["SpotRequest"], Any]
    valid_until: datetime | None = None
    instance: Any = None
    id: str = field(default_factory=lambda: f"sir-{secrets.token_hex(4)}")
    create_time: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    is_cancelled: bool = False
    product_description: str = "Linux/UNIX"
    instance_interruption_behavior: str = "terminate"
    _waiting: tuple[str, str] = ("pending-evaluation", "")
    _failed: bool = False
    _updated: tuple[str, datetime] = ("", datetime.min.replace(tzinfo=UTC))

    @property
    def is_running(self) -> bool:
        """True while an instance fulfils it."""
        return self.instance is not None and self.instance.state in (
            "pending",
            "running",
            "stopping",
            "stopped",
        )

    @property
    def is_waiting(self) -> bool:
        """True if an instance is to be launched for it."""
        if self.is_cancelled or self._failed or self.is_running or self.status_code == "schedule-expired":
            return False
        return self.instance is None or self.type == PERSISTENT

    @property
    def is_watched(self) -> bool:
        """True if an instance is to be launched for it, now or when its instance ends."""
        return self.is_waiting or (self.type == PERSISTENT and self.is_running and not self.is_cancelled)

    @property
    def state(self) -> str:
        if self.is_cancelled:
            return "cancelled"
        if self._failed:
            return "failed"
        if self.status_code == "schedule-expired":
            return "closed"
        if self.is_running:
            return "active"
        return "open" if self.is_waiting else "closed"

    @property
    def status_code(self) -> str:
        if self.is_running:
            if self.is_cancelled:
                return "request-canceled-and-instance-running"
            return "fulfilled"
        if self.instance is not None:
            interrupted = self.instance.state_reason.code == "Server.SpotInstanceTermination"
            return "instance-terminated-no-capacity" if interrupted else "instance-terminated-by-user"
        if self.is_cancelled:
            return "canceled-before-fulfillment"
        if self.valid_until is not None and self.valid_until <= datetime.now(UTC):
            return "schedule-expired"
        return self._waiting[0]

    @property
    def status(self) -> dict[str, Any]:
        code = self.status_code
        if self._updated[0] != code:
            self._updated = (code, datetime.now(UTC).replace(microsecond=0))
        message = _MESSAGES.get(code) or self._waiting[1]
        return {"Code": code, "Message": message, "UpdateTime": self._updated[1]}

    @property
    def instance_id(self) -> str | None:
        return None if self.instance is None else str(self.instance.id)

    def fulfil(self, instance: Any) -> None:  # noqa: ANN401 - moto's object
        """Take an instance that was launched for it."""
        self.instance = instance
        instance.spot_instance_request_id = self.id

    def postpone(self, code: str, message: str) -> None:
        """Record that a launch was refused; the request waits, or fails for good by a wrong parameter."""
        self._failed = code not in _WAITING
        self._waiting = (_WAITING.get(code, "bad-parameters"), message)
        self.instance = None

    def shown(self) -> dict[str, Any]:
        """Return the request as DescribeSpotInstanceRequests shows it."""
        zone = None if self.instance is None else self.instance.availability_zone
        return {
            "CreateTime": self.create_time,
            "InstanceId": self.instance_id,
            "LaunchSpecification": self.launch_specification,
            "LaunchedAvailabilityZone": zone,
            "ProductDescription": self.product_description,
            "SpotInstanceRequestId": self.id,
            "SpotPrice": self.spot_price,
            "State": self.state,
            "Status": self.status,
            "Tags": [{"Key": tag["key"], "Value": tag["value"]} for tag in self.get_tags()],
            "Type": self.type,
            "ValidUntil": self.valid_until,
            "InstanceInterruptionBehavior": self.instance_interruption_behavior,
        }


class SpotRequests:
    """The requests of one site, of all its regions. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[str, SpotRequest] = {}
        self._evaluating = False

    def add(self, request: SpotRequest) -> None:
        """Keep a request, and launch for it as long as it waits."""
        with self._lock:
            self._forget_old()
            self._requests[request.id] = request
            if request.is_watched and not self._evaluating:
                self._evaluating = True
                threading.Thread(target=self._evaluate, name="spot requests", daemon=True).start()

    def of(self, backend: Any, request_ids: Iterable[str]) -> list[SpotRequest]:  # noqa: ANN401 - moto's object
        """Return the requests of a region: all, or those with the ids.

        Raises:
            LookupError: An id is unknown there.
        """
        with self._lock:
            requests = {key: value for key, value in self._requests.items() if value.ec2_backend is backend}
        request_ids = list(request_ids)
        missing = [name for name in request_ids if name not in requests]
        if missing:
            raise LookupError(missing[0])
        return [requests[name] for name in request_ids] if request_ids else list(requests.values())

    def cancel(self, requests: Iterable[SpotRequest]) -> None:
        """Cancel requests; their instances run on."""
        with self._lock:
            for request in requests:
                request.is_cancelled = True

    def _evaluate(self) -> None:
        """Launch for waiting requests until none waits or may wait again."""
        pause = threading.Event()
        while True:
            with self._lock:
                watched = [request for request in self._requests.values() if request.is_watched]
                if not watched:
                    self._evaluating = False
                    return
            # Not under the lock: a launch that is under way adds requests.
            for request in watched:
                if request.is_waiting:
                    _launch(request)
            pause.wait(_EVALUATION_S)

    def _forget_old(self) -> None:
        before = datetime.now(UTC) - _SHOWN_AFTER_END
        for request in list(self._requests.values()):
            ended = not request.is_watched and not request.is_running
            if ended and request.status["UpdateTime"] < before:
                del self._requests[request.id]


def _launch(request: SpotRequest) -> None:
    try:
        request.fulfil(request.launch(request))
    except EC2ClientError as error:
        request.postpone(str(error.code), str(error.message))
    except Exception:
        log.exception("%s could not be fulfilled", request.id)
        request.postpone("InternalError", "The local EC2 failed; see its daemon.log.")


_SPEC = "launch_specification"
_CARDS = f"{_SPEC}.NetworkInterfaces"
SPOT_REQUEST_FILTERS: Table = {
    **dict.fromkeys(
        (
            "availability-zone-group",
            "fault-code",
            "fault-message",
            "launch-group",
            "launch.kernel-id",
            "launch.ramdisk-id",
            "network-interface.addresses.primary",
            "network-interface.network-interface-id",
            "valid-from",
        ),
        "",
    ),
    "create-time": "create_time",
    "instance-id": "instance_id",
    "launch.block-device-mapping.delete-on-termination": (
        f"{_SPEC}.BlockDeviceMappings.Ebs.DeleteOnTermination"
    ),
    "launch.block-device-mapping.device-name": f"{_SPEC}.BlockDeviceMappings.DeviceName",
    "launch.block-device-mapping.snapshot-id": f"{_SPEC}.BlockDeviceMappings.Ebs.SnapshotId",
    "launch.block-device-mapping.volume-size": f"{_SPEC}.BlockDeviceMappings.Ebs.VolumeSize",
    "launch.block-device-mapping.volume-type": f"{_SPEC}.BlockDeviceMappings.Ebs.VolumeType",
    "launch.group-id": "instance.security_groups.id",
    "launch.group-name": "instance.security_groups.name",
    "launch.image-id": f"{_SPEC}.ImageId",
    "launch.instance-type": f"{_SPEC}.InstanceType",
    "launch.key-name": f"{_SPEC}.KeyName",
    "launch.monitoring-enabled": f"{_SPEC}.Monitoring.Enabled",
    "launched-availability-zone": "instance.availability_zone",
    "launched-availability-zone-id": "instance.placement.availability_zone_id",
    "network-interface.delete-on-termination": f"{_CARDS}.DeleteOnTermination",
    "network-interface.description": f"{_CARDS}.Description",
    "network-interface.device-index": f"{_CARDS}.DeviceIndex",
    "network-interface.group-id": f"{_CARDS}.Groups",
    "network-interface.private-ip-address": f"{_CARDS}.PrivateIpAddress",
    "network-interface.subnet-id": f"{_CARDS}.SubnetId",
    "product-description": "product_description",
    "spot-instance-request-id": "id",
    "spot-price": "spot_price",
    "state": "state",
    "status-code": "status_code",
    "status-message": "status.Message",
    "type": "type",
    "valid-until": "valid_until",
}
