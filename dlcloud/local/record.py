"""An instance in moto's books: the only place that writes moto's private fields of one."""

import base64
import copy
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from dlcloud.local.capacity import Pool
from dlcloud.local.machine import Identity

SSH_PORT_TAG = "dlcloud:ssh-port"


class State(Enum):
    """The states of an instance, with EC2's codes."""

    PENDING = ("pending", 0)
    RUNNING = ("running", 16)
    SHUTTING_DOWN = ("shutting-down", 32)
    TERMINATED = ("terminated", 48)
    STOPPING = ("stopping", 64)
    STOPPED = ("stopped", 80)


# What occupies capacity; a stopped instance gives its place back.
_LIVING = (State.PENDING, State.RUNNING, State.SHUTTING_DOWN, State.STOPPING)


class End(Enum):
    """Why an instance ended, with EC2's codes."""

    USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
    ITSELF = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
    SPOT = ("Server.SpotInstanceTermination", "Spot instance termination")
    BOOT = ("Server.InternalError", "Internal error on launch")


class Record:
    """One instance of moto.

    Args:
        instance: moto's object, whose attributes the EC2 answers show.
        template: The launch template data that the instance was launched with, if any.
    """

    def __init__(self, instance: Any, template: Mapping[str, Any]) -> None:  # noqa: ANN401 - moto's object
        self._instance = instance
        self.state = State.PENDING
        self.ended_at: datetime | None = None
        self._apply_template(template)

    @property
    def instance_id(self) -> str:
        """Return the instance's id."""
        return str(self._instance.id)

    @property
    def pool(self) -> Pool:
        """Return the capacity pool that the instance comes from."""
        return Pool(instance_type=self._instance.instance_type, zone=str(self._instance.availability_zone))

    @property
    def is_living(self) -> bool:
        """Tell whether the instance occupies capacity."""
        return self.state in _LIVING

    @property
    def is_spot(self) -> bool:
        """Tell whether the instance is a spot instance."""
        return bool(self._instance.lifecycle == "spot")

    @property
    def launched_at(self) -> datetime:
        """Return when the instance was launched."""
        moment: datetime = self._instance.launch_time
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    @property
    def ends_at_shutdown(self) -> bool:
        """Tell whether the instance terminates when it shuts itself down, and does not only stop."""
        return bool(self._instance.instance_initiated_shutdown_behavior == "terminate")

    def tags(self) -> dict[str, str]:
        """Return the instance's tags."""
        return {tag["key"]: tag["value"] for tag in self._instance.get_tags()}

    def profile(self) -> Any | None:  # noqa: ANN401 - moto's object
        """Return the instance profile that the instance has now, if any."""
        associations = self._instance.ec2_backend.iam_instance_profile_associations
        association = associations.get(self.instance_id)
        return None if association is None else association.iam_instance_profile

    def identity(self) -> Identity:
        """Return what the instance knows of itself."""
        me = self._instance
        return Identity(
            instance_id=me.id,
            instance_type=me.instance_type,
            image_id=me.image_id,
            region=me.region_name,
            zone=me.availability_zone,
            account_id=me.owner_id,
            hostname=me.private_dns_name,
            lifecycle=me.lifecycle or "on-demand",
            launched_at=self.launched_at,
            user_data=_plain(me.user_data),
            public_key=self._public_key(),
        )

    def set_address(self, host: str, ssh_port: int) -> None:
        """Show where the instance answers: its own loopback address, inside as outside."""
        card = self._instance.nics[0]
        card.delete_on_termination = True
        card.private_ip_address = host
        for entry in card.private_ip_addresses:
            entry["PrivateIpAddress"] = host
        if card.public_ip is not None:
            card.public_ip = host
        self._instance.add_tags({SSH_PORT_TAG: str(ssh_port)})

    def show(self, state: State) -> None:
        """Change the state that EC2 answers show."""
        self.state = state
        self._instance._state.name, self._instance._state.code = state.value  # noqa: SLF001 - see above

    def end(self, why: End) -> None:
        """Enter the end: moto takes the volumes and network cards off, and the reason is shown."""
        if why is not End.USER:
            self._instance.disable_api_termination = False
        self._instance.terminate()
        self.explain(why)
        self.ended_at = datetime.now(UTC)
        self.show(State.TERMINATED)

    def stop(self, why: End) -> None:
        """Enter a stop and its reason."""
        self._instance.stop()
        self.explain(why)
        self.show(State.STOPPED)

    def restart(self) -> None:
        """Enter a start."""
        self._instance.start()
        self.show(State.PENDING)

    def explain(self, why: End) -> None:
        """Show why the instance ends or stops."""
        code, text = why.value
        reason = copy.copy(self._instance.state_reason)
        reason.code, reason.message = code, f"{code}: {text}"
        self._instance.state_reason = reason
        moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
        self._instance._reason = f"{text} ({moment})"  # noqa: SLF001 - see above

    def _apply_template(self, template: Mapping[str, Any]) -> None:
        """Apply what moto leaves out of a launch template, and what every spot instance has."""
        options = template.get("MetadataOptions")
        if options:
            self._instance.metadata_options = type(self._instance.metadata_options)(options)
        behavior = template.get("InstanceInitiatedShutdownBehavior")
        if behavior:
            self._instance.instance_initiated_shutdown_behavior = behavior
        if template.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
            self._instance.lifecycle = "spot"
        if self.is_spot:
            self._instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}"
        self.show(State.PENDING)

    def _public_key(self) -> str | None:
        """Return the EC2 key pair's public key, in OpenSSH's form."""
        pair = self._instance.ec2_backend.key_pairs.get(self._instance.key_name)
        material = getattr(pair, "material_public", None)
        if material is None:
            return None
        return material.decode().strip() if isinstance(material, bytes) else str(material).strip()


def _plain(user_data: object) -> bytes:
    """Return user data as it was before its base64, which moto keeps as a type of its own."""
    if user_data is None:
        return b""
    return base64.b64decode(str(user_data))
