"""Images of instances: copies of what is on their disk, which new instances boot from."""

import pytest

from tests.fakes.local_ec2 import UBUNTU, wait_for
from tests.fakes.local_ec2 import refusal as refused

TAGS = [{"Key": "team", "Value": "blue"}]
BOTH_TAGGED = [{"ResourceType": kind, "Tags": TAGS} for kind in ("image", "snapshot")]


@pytest.fixture(scope="module")
def builder(rig):
    rig.control.set_cache(shared=False)
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "Encrypted": True}}
    yield rig.up(BlockDeviceMappings=[disk])
    rig.control.set_cache(shared=True)


def describe(rig, image_id):
    (image,) = rig.ec2.describe_images(ImageIds=[image_id])["Images"]
    return image


@pytest.fixture(scope="module")
def image(rig, builder):
    rig.on(builder, "mkdir -p .cache/tool && echo kept >.cache/tool/file && ln -s tool .cache/link")
    rig.on(builder, 'echo gone >"$DLCLOUD_ROOT/tmp/file"')
    answer = rig.ec2.create_image(
        InstanceId=builder["InstanceId"], Name="my image", TagSpecifications=BOTH_TAGGED
    )
    assert describe(rig, answer["ImageId"])["State"] == "pending"
    wait_for(lambda: describe(rig, answer["ImageId"])["State"] == "available", "the image is available")
    return describe(rig, answer["ImageId"])


def test_an_image_has_the_properties_of_its_instance_and_its_own_tags(rig, image):
    (mapping,) = image["BlockDeviceMappings"]
    assert mapping["DeviceName"] == image["RootDeviceName"] == "/dev/sda1"
    assert (mapping["Ebs"]["VolumeSize"], mapping["Ebs"]["Encrypted"]) == (20, True)
    assert image["Architecture"] == "x86_64"
    assert image["Tags"] == TAGS
    (snapshot,) = rig.ec2.describe_snapshots(SnapshotIds=[mapping["Ebs"]["SnapshotId"]])["Snapshots"]
    assert (snapshot["Tags"], snapshot["VolumeSize"]) == (TAGS, 20)
    own = rig.ec2.describe_images(Owners=["self"])["Images"]
    assert [entry["ImageId"] for entry in own] == [image["ImageId"]]


def test_an_instance_of_the_image_has_its_disk_and_an_identity_of_its_own(rig, builder, image):
    instance = rig.up(ImageId=image["ImageId"])
    assert rig.on(instance, "cat .cache/link/file")[1] == "kept\n"
    assert rig.on(instance, 'test -e "$DLCLOUD_ROOT/tmp/file"')[0] == 1
    assert instance["InstanceId"] != builder["InstanceId"]
    keys = [
        rig.on(entry, 'cat "$DLCLOUD_ROOT/etc/ssh/ssh_host_ed25519_key.pub"') for entry in (builder, instance)
    ]
    assert keys[0] != keys[1]
    # cloud-init adds keys; those of the image stay.
    assert len(rig.on(instance, "cat .ssh/authorized_keys")[1].splitlines()) == 2
    assert rig.on(builder, "rm -rf .cache/tool")[0] == 0
    assert rig.on(instance, "cat .cache/link/file")[1] == "kept\n"


def test_what_ec2_refuses_of_an_image_is_refused(rig, builder, image):
    create, instance_id = rig.ec2.create_image, builder["InstanceId"]
    assert refused(create, InstanceId=instance_id, Name="my image") == "InvalidAMIName.Duplicate"
    assert refused(create, InstanceId=instance_id, Name="no:colon") == "InvalidAMIName.Malformed"
    wrong = [{"ResourceType": "volume", "Tags": TAGS}]
    code = refused(create, InstanceId=instance_id, Name="other", TagSpecifications=wrong)
    assert code == "InvalidParameterValue"
    assert refused(rig.ec2.deregister_image, ImageId=UBUNTU) == "AuthFailure"
    disk = image["BlockDeviceMappings"][0]["Ebs"]
    assert refused(rig.ec2.delete_snapshot, SnapshotId=disk["SnapshotId"]) == "InvalidSnapshot.InUse"
    small = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 19}}
    code = refused(rig.run, ImageId=image["ImageId"], BlockDeviceMappings=[small])
    assert code == "InvalidBlockDeviceMapping"


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_pending_image_cannot_be_launched_and_a_deregistered_one_is_gone(rig, builder, with_snapshot):
    rig.control.set_boot_delay(1.0)
    image_id = rig.ec2.create_image(InstanceId=builder["InstanceId"], Name=f"next {with_snapshot}")["ImageId"]
    assert refused(rig.run, ImageId=image_id) == "InvalidAMIID.Unavailable"
    wait_for(lambda: describe(rig, image_id)["State"] == "available", "the image is available")
    snapshot_id = describe(rig, image_id)["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    assert (rig.folder / "images" / image_id).is_dir()
    rig.ec2.deregister_image(ImageId=image_id, DeleteAssociatedSnapshots=with_snapshot)
    assert not (rig.folder / "images" / image_id).exists()
    assert refused(rig.run, ImageId=image_id) == "InvalidAMIID.Unavailable"
    assert refused(rig.ec2.deregister_image, ImageId=image_id) == "InvalidAMIID.Unavailable"
    if not with_snapshot:  # it outlives its image
        rig.ec2.delete_snapshot(SnapshotId=snapshot_id)
    assert refused(rig.ec2.delete_snapshot, SnapshotId=snapshot_id) == "InvalidSnapshot.NotFound"
