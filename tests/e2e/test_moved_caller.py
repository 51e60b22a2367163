"""A cluster launched from another address: the local EC2 drops what its security group does not admit."""

OLD, HERE = "198.51.100.9/32", "127.0.0.1/32"
RECIPE = (
    "name: moved\ncloud: local\ninstances: {types: [c7i.large]}\nworkload: {command: 'true', repeats: 1}\n"
)


def ssh_rules(ec2):
    """Return dlcloud's security group, and the networks that may reach port 22."""
    (group,) = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["dlcloud-*"]}])[
        "SecurityGroups"
    ]
    permissions = [rule for rule in group["IpPermissions"] if rule["FromPort"] == 22]
    return group["GroupId"], {network["CidrIp"] for rule in permissions for network in rule["IpRanges"]}


def permission(network):
    ranges = [{"CidrIp": network, "Description": "dlcloud"}]
    return [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": ranges}]


def test_a_caller_that_has_moved_is_admitted_in_place_of_its_old_address(user):
    (user.home / "moved.yaml").write_text(RECIPE)
    user.run("up", "moved.yaml", "--keep", "--name", "moved")
    group, networks = ssh_rules(user.ec2)
    assert networks == {HERE}
    user.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=permission(OLD))
    user.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=permission(HERE))
    done = user.run("exec", "moved", "--", "echo in")
    assert done.stdout == "in\n"
    assert f"address has changed: SSH is allowed from {HERE}, no longer from {OLD}" in " ".join(
        done.stderr.split()
    )
    assert ssh_rules(user.ec2)[1] == {HERE}
    user.run("down", "moved")
