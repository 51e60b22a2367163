"""The EC2 actions on images of one's own, which are copies of the folders of instances."""

import re
from typing import Any, ClassVar

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError

from dlcloud.local.ec2.instances import SiteInstances
from dlcloud.local.ec2.launch_checks import check_instance_ids, refuse
from dlcloud.local.ec2.services import MarketResponses

# Source: EC2 API reference, CreateImage, Name.
_NAME = re.compile(r"[A-Za-z0-9()\[\] ./'@_-]{3,128}")
_TAGGED = ("image", "snapshot")


class ImageResponses(MarketResponses):
    """The answers on images; bound to one site by a subclass."""

    instances: ClassVar[SiteInstances]

    def create_image(self) -> ActionResult:
        """Copy an instance's folder; the image is `pending` meanwhile.

        A reboot, which EC2 makes first unless NoReboot is set, changes nothing on a local instance.
        """
        instance_id, name = str(self.params.get("InstanceId")), str(self.params.get("Name"))
        check_instance_ids([instance_id])
        instance = self.ec2_backend.get_instance(instance_id)
        if instance.state not in ("running", "stopped"):
            # Source: EC2 API reference, "Error codes": IncorrectInstanceState.
            message = f"Instance '{instance_id}' is not in a running or stopped state."
            raise EC2ClientError("IncorrectInstanceState", message)
        self._check_name(name)
        tags = {entry["ResourceType"]: entry["Tags"] for entry in self.params.get("TagSpecifications") or ()}
        if set(tags) - set(_TAGGED):
            raise refuse("InvalidParameterValue", f"CreateImage tags {' and '.join(_TAGGED)} only.")
        self.error_on_dryrun()
        image = self.ec2_backend.create_image(instance_id, name, self.params.get("Description") or "", [])
        for resource, kind in ((image, "image"), (image.ebs_snapshot, "snapshot")):
            resource.add_tags({tag["Key"]: tag["Value"] for tag in tags.get(kind, ())})
        self._complete_image(image, instance)
        self.instances.copy_to_image(instance_id, image)
        return ActionResult({"ImageId": image.id})

    def deregister_image(self) -> ActionResult:
        """Forget an image; with DeleteAssociatedSnapshots, its snapshot too."""
        self.error_on_dryrun()
        image_id = str(self.params.get("ImageId"))
        (image,) = self.ec2_backend.describe_images(ami_ids=[image_id]) or [None]
        if image is None:
            raise refuse("InvalidAMIID.Unavailable", f"The image ID '{image_id}' is no longer available")
        if image.owner_id != self.current_account:
            raise refuse("AuthFailure", "Not authorized for image:" + image_id)
        self.ec2_backend.deregister_image(image_id)
        self.instances.remove_image(image_id)
        if self.params.get("DeleteAssociatedSnapshots"):
            self.ec2_backend.delete_snapshot(image.ebs_snapshot.id)
        return ActionResult({"Return": True})

    def _check_name(self, name: str) -> None:
        """Refuse a name that EC2 refuses. Source: EC2 API reference, "Error codes", InvalidAMIName."""
        if not _NAME.fullmatch(name):
            raise refuse("InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long.")
        for image in self.ec2_backend.amis.values():
            if image.name == name and image.owner_id == self.current_account:
                message = f"AMI name {name} is already in use by AMI {image.id}"
                raise refuse("InvalidAMIName.Duplicate", message)

    def _complete_image(self, image: Any, instance: Any) -> None:  # noqa: ANN401 - moto's objects
        """Give an image the properties of its instance that moto leaves out."""
        source = self.ec2_backend.amis.get(instance.image_id)
        image.state = "pending"
        image.architecture = instance.architecture or "x86_64"
        image.root_device_name = source.root_device_name if source else image.root_device_name
        image.root_device_type = "ebs"
        root = instance.block_device_mapping.get(image.root_device_name)
        volume = self.ec2_backend.volumes.get(root.volume_id) if root else None
        if volume is not None:
            image.ebs_snapshot.volume = volume
            image.ebs_snapshot.encrypted = volume.encrypted
            image.root_gib = volume.size
