"""Instances and launch templates as moto stores them: the only module that writes moto's private fields.

An `InstanceRecord` wraps moto's object from the launch to the end. `ec2/instances.py` sets its state and its
address; metadata, security groups, capacity and reservations read from it. When moto changes its fields, this
is the module to change.
"""

import base64
import copy
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from dlcloud.local.capacity.pools import Pool
from dlcloud.local.instance.addresses import Listeners, Sources, inside_sources, ssh_sources
from dlcloud.local.instance.metadata import Identity, metadata_documents
from dlcloud.model.instance import InstanceState, Market

SSH_PORT_TAG = "dlcloud:ssh-port"
# Source: EC2 API reference, InstanceState.
_STATE_CODES = {
    InstanceState.PENDING: 0,
    InstanceState.RUNNING: 16,
    InstanceState.SHUTTING_DOWN: 32,
    InstanceState.TERMINATED: 48,
    InstanceState.STOPPING: 64,
    InstanceState.STOPPED: 80,
}
# moto's token of a launch without one.
_MOTO_CLIENT_TOKEN = "ABCDE"  # noqa: S105 - not a secret


class StateReason(Enum):
    """Why an instance ended or stopped: EC2's code and message."""

    USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
    ITSELF = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
    SPOT = ("Server.SpotInstanceTermination", "Spot instance termination")
    BOOT = ("Server.InternalError", "Internal error on launch")
    # Source: AWS re:Post, "kms-iam-ec2-permission".
    KEY = ("Client.InternalError", "Client error on launch")


class InstanceRecord:
    """One instance of moto.

    Args:
        instance: moto's object, whose attributes the EC2 answers show.
        template: The launch template data that the instance was launched with, if any.
        reservation_id: The id of its launch.
        public: It has a public address.
    """

    def __init__(
        self,
        instance: Any,  # noqa: ANN401 - moto's object
        template: Mapping[str, Any],
        reservation_id: str,
        *,
        public: bool = True,
    ) -> None:
        self._instance = instance
        self._public = public
        self._set_shown_properties(reservation_id)
        instance.capacity_reservation_id = None
        self.state = InstanceState.PENDING
        self.ended_at: datetime | None = None
        self._apply_template(template)

    @property
    def instance_id(self) -> str:
        return str(self._instance.id)

    @property
    def pool(self) -> Pool:
        return Pool(instance_type=self._instance.instance_type, zone=str(self._instance.availability_zone))

    @property
    def occupies_capacity(self) -> bool:
        """True unless the instance is stopped, which gives its place back, or terminated."""
        return self.state not in (InstanceState.STOPPED, InstanceState.TERMINATED)

    @property
    def is_booting_or_running(self) -> bool:
        return self.state in (InstanceState.PENDING, InstanceState.RUNNING)

    @property
    def market(self) -> Market:
        return Market.SPOT if self._instance.lifecycle == "spot" else Market.ON_DEMAND

    @property
    def reservation_id(self) -> str:
        """The Capacity Reservation that the instance runs in; empty for none."""
        return str(getattr(self._instance, "capacity_reservation_id", None) or "")

    def leave_reservation(self) -> None:
        """Run on outside of the reservation, which has ended."""
        self._instance.capacity_reservation_id = None

    @property
    def launched_at(self) -> datetime:
        moment: datetime = self._instance.launch_time
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    @property
    def terminates_at_shutdown(self) -> bool:
        """True if the instance terminates when it shuts itself down; else it stops."""
        return bool(self._instance.instance_initiated_shutdown_behavior == "terminate")

    def metadata_documents(self) -> dict[str, str]:
        """Return the instance's metadata documents by path, as they are now."""
        return metadata_documents(self._instance, self._public_key())

    def names(self) -> tuple[str, ...]:
        """Return the id and the DNS names of the instance."""
        names = (self.instance_id, self._instance.private_dns_name, self._instance.public_dns_name)
        return tuple(str(name) for name in names if name)

    def ssh_sources(self) -> Sources:
        """Return from where the instance's security groups let connections reach its port 22."""
        sources = ssh_sources(self._instance.security_groups)
        if self._public:
            return sources
        vpc = self._instance.ec2_backend.get_vpc(self._instance.nics[0].subnet.vpc_id)
        return inside_sources(sources, vpc.cidr_block)

    def profile(self) -> Any | None:  # noqa: ANN401 - moto's object
        """Return the instance profile that the instance has now, if any."""
        associations = self._instance.ec2_backend.iam_instance_profile_associations
        association = associations.get(self.instance_id)
        return None if association is None else association.iam_instance_profile

    def identity(self) -> Identity:
        """Return the properties that the instance's own services show."""
        instance = self._instance
        return Identity(
            instance_id=instance.id,
            instance_type=instance.instance_type,
            image_id=instance.image_id,
            region=instance.region_name,
            zone=instance.availability_zone,
            account_id=instance.owner_id,
            architecture=instance.architecture or "x86_64",
            launched_at=self.launched_at,
            # moto keeps user data in base64, as its own type.
            user_data=b"" if instance.user_data is None else base64.b64decode(str(instance.user_data)),
            public_key=self._public_key(),
        )

    def take_address(self, listeners: Listeners) -> None:
        """Make a loopback address the instance's private one, and its public one if it has any."""
        host = listeners.host
        listeners.ssh.admit(self.ssh_sources())
        card = self._instance.nics[0]
        card.delete_on_termination = True
        card.private_ip_address = host
        for entry in card.private_ip_addresses:
            entry["PrivateIpAddress"] = host
        card.public_ip_auto_assign = self._public
        self._show_public_address()
        self._instance.add_tags({SSH_PORT_TAG: str(listeners.ssh_port)})

    def _show_public_address(self) -> None:
        card = self._instance.nics[0]
        has_one = self._public and self.state is not InstanceState.STOPPED
        card.public_ip = card.private_ip_address if has_one else None

    def set_state(self, state: InstanceState) -> None:
        self.state = state
        shown = self._instance.instance_state
        shown.name, shown.code = state.value, _STATE_CODES[state]

    def set_reason(self, reason: StateReason) -> None:
        """Set why the instance ends or stops."""
        code, text = reason.value
        shown = copy.copy(self._instance.state_reason)
        shown.code, shown.message = code, f"{code}: {text}"
        self._instance.state_reason = shown
        moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
        self._instance._reason = f"{text} ({moment})"  # noqa: SLF001 - moto can only be asked for it

    def terminate(self, reason: StateReason) -> None:
        """Record the end; moto deletes the volumes and network interfaces."""
        backend, cards = self._instance.ec2_backend, list(self._instance.nics.values())
        try:
            self._instance.terminate()
            for card in cards:
                if card.id in backend.enis:
                    self._instance.detach_eni(card)
        finally:
            self.set_reason(reason)
            self.ended_at = datetime.now(UTC)
            self.set_state(InstanceState.TERMINATED)

    def stop(self, reason: StateReason) -> None:
        self._instance.stop()
        self.set_reason(reason)
        self.set_state(InstanceState.STOPPED)
        self._show_public_address()

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
        if self.market is Market.SPOT:
            self._instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}"
        self.set_state(InstanceState.PENDING)

    def _set_shown_properties(self, reservation_id: str) -> None:
        """Set what EC2 shows of an instance, and finds it by, beyond what moto has."""
        instance = self._instance
        instance.reservation_id = reservation_id
        # moto's own goes through the tags of everything, for each instance that is shown.
        instance.get_tags = lambda: _read_tags(instance)
        if instance.client_token == _MOTO_CLIENT_TOKEN:
            instance.client_token = ""
        if not instance.security_groups:
            instance.security_groups = list(instance.nics[0].group_set)
        zones = instance.ec2_backend.describe_availability_zones()
        zone_ids = {zone.name: zone.zone_id for zone in zones}
        instance.placement.availability_zone_id = zone_ids.get(instance.availability_zone)

    def _public_key(self) -> str | None:
        """Return the EC2 key pair's public key, in OpenSSH's form."""
        pair = self._instance.ec2_backend.key_pairs.get(self._instance.key_name)
        material = getattr(pair, "material_public", None)
        if material is None:
            return None
        return material.decode().strip() if isinstance(material, bytes) else str(material).strip()


def _read_tags(instance: Any) -> list[dict[str, str]]:  # noqa: ANN401 - moto's object
    """Return the tags of an instance in the form of moto's get_tags."""
    tags = instance.ec2_backend.tags.get(instance.id, {})
    return [
        {"resource_id": instance.id, "resource_type": "instance", "key": key, "value": value}
        for key, value in list(tags.items())
    ]


def template_version(backend: Any, specification: Mapping[str, Any]) -> Any:  # noqa: ANN401 - moto's objects
    """Return the version of a launch template that a request names by id or name."""
    if "LaunchTemplateId" in specification:
        template = backend.get_launch_template(specification["LaunchTemplateId"])
    else:
        template = backend.get_launch_template_by_name(specification.get("LaunchTemplateName"))
    return template.get_version(specification.get("Version", "$Default"))
