"""The EC2 actions on Elastic IPs."""

from typing import Any

from moto.core.responses import ActionResult, EmptyResult

from dlcloud.local.ec2.launch_checks import refuse
from dlcloud.local.ec2.volume_responses import VolumeResponses

# Source: EC2 user guide, "Elastic IP address quota": of a region.
_MOST_ADDRESSES = 5


class AddressResponses(VolumeResponses):
    """The answers on Elastic IPs; bound to one site by a subclass."""

    def allocate_address(self) -> ActionResult:
        """Allocate a loopback address, in place of one of the internet."""
        self.error_on_dryrun()
        if len(self.ec2_backend.addresses) >= _MOST_ADDRESSES:
            raise refuse("AddressLimitExceeded", "The maximum number of addresses has been reached.")
        try:
            self.params["Address"] = self.instances.elastic_ips.allocate()
        except OSError as error:
            raise refuse("UnsupportedOperation", str(error)) from error
        return super().allocate_address()

    def associate_address(self) -> ActionResult:
        """Make an address that of an instance; the address that the instance had is free again."""
        self.error_on_dryrun()
        address, instance = self._named_address(), self._named_instance()
        if instance is not None and instance.state not in ("running", "stopped"):
            message = f"The instance '{instance.id}' is not in a valid state for this operation."
            raise refuse("IncorrectInstanceState", message)
        others = [address] if self.params.get("AllowReassociation") else []
        others += [other for other in self.ec2_backend.addresses if instance and other.instance is instance]
        for other in others:
            self._free(other)
        result = super().associate_address()
        address.instance = instance  # moto names none that is given by its interface
        if instance is not None:
            try:
                self.instances.elastic_ips.move(instance.id, address.public_ip)
            except OSError as error:
                self._free(address)
                raise refuse("InsufficientAddressCapacity", str(error)) from error
        return result

    def disassociate_address(self) -> ActionResult:
        """Free an address; its instance has a public address of its own again."""
        self.error_on_dryrun()
        self._free(self._named_address())
        return EmptyResult()

    def release_address(self) -> ActionResult:
        """Give an address back that is of no instance; moto takes it from its instance."""
        self.error_on_dryrun()
        address = self._named_address()
        if address.association_id:
            raise refuse("InvalidIPAddress.InUse", f"Address {address.public_ip} is in use.")
        return super().release_address()

    def _free(self, address: Any) -> None:  # noqa: ANN401 - moto's object
        instance = address.instance
        self.ec2_backend.disassociate_address(address=address.public_ip)
        if instance is not None:
            self.instances.elastic_ips.move(instance.id, None)

    def _named_address(self) -> Any:  # noqa: ANN401 - moto's object
        """Return the address that the request names by its allocation, its association, or itself."""
        backend, params = self.ec2_backend, self.params
        if "AllocationId" in params:
            return backend.address_by_allocation([params["AllocationId"]])[0]
        if "AssociationId" in params:
            return backend.address_by_association([params["AssociationId"]])[0]
        if "PublicIp" in params:
            return backend.address_by_ip([params["PublicIp"]])[0]
        raise refuse("MissingParameter", "The request must contain the parameter AllocationId or PublicIp")

    def _named_instance(self) -> Any | None:  # noqa: ANN401 - moto's object
        """Return the instance that the request names, itself or by its first interface; None for another."""
        if "InstanceId" in self.params:
            return self.ec2_backend.get_instance(self.params["InstanceId"])
        if "NetworkInterfaceId" not in self.params:
            message = "The request must contain the parameter InstanceId or NetworkInterfaceId"
            raise refuse("MissingParameter", message)
        interface = self.ec2_backend.get_network_interface(self.params["NetworkInterfaceId"])
        instance = interface.instance
        return instance if instance is not None and instance.nics.get(0) is interface else None
