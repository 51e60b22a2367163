"""The EC2 actions on volumes, where moto takes what EC2 refuses."""

from moto.core.responses import ActionResult

from dlcloud.local.ec2.image_responses import ImageResponses
from dlcloud.local.ec2.launch_checks import refuse


class VolumeResponses(ImageResponses):
    """The answers on volumes."""

    def attach_volume(self) -> ActionResult:
        """Attach a volume that is free to a device that is, in the volume's zone.

        Source: EC2 API reference, "Error codes"; AttachVolume.
        """
        volume = self.ec2_backend.get_volume(str(self.params.get("VolumeId")))
        instance = self.ec2_backend.get_instance(str(self.params.get("InstanceId")))
        device = str(self.params.get("Device") or "")
        if volume.attachment is not None:
            raise refuse("VolumeInUse", f"{volume.id} is already attached to an instance")
        if volume.zone is not None and volume.zone.name != instance.availability_zone:
            message = (
                f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
            )
            raise refuse("InvalidVolume.ZoneMismatch", message)
        if device in instance.block_device_mapping:
            message = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
            raise refuse("InvalidParameterValue", message)
        if instance.state not in ("pending", "running", "stopping", "stopped"):
            message = f"The instance '{instance.id}' is not in a state that takes volumes."
            raise refuse("IncorrectState", message)
        return super().attach_volume()
