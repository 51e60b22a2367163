"""AWS's managed policies, each made when a call names it: all of them would take 31 MiB. Imports moto."""

import json
import threading

from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy, iam_backends

from dlcloud.local.api.call import Call
from dlcloud.local.iam.access import PARTITION

_BEGIN = f"arn:{PARTITION}:iam::aws:policy/"
_lock = threading.Lock()


def add_managed_policy(call: Call) -> None:
    """Make the managed policy that a call to IAM names, if it is one of AWS's and not there yet."""
    arn = call.parameter("PolicyArn") or call.parameter("PermissionsBoundary")
    if call.service != "iam" or not arn.startswith(_BEGIN):
        return
    backend = iam_backends[ACCOUNT][PARTITION]
    with _lock:
        data = None if arn in backend.managed_policies else _read(arn)
        if data is not None:
            policy = AWSManagedPolicy.from_data(arn.rpartition("/")[2], ACCOUNT, backend.region_name, data)
            backend.managed_policies[arn] = policy
            backend.aws_managed_policies.append(policy)


def _read(arn: str) -> dict[str, object] | None:
    path, _, name = f"/{arn.removeprefix(_BEGIN)}".rpartition("/")
    data = json.loads(aws_managed_policies_data).get(name)
    return data if data is not None and data.get("Path") == f"{path}/" else None
