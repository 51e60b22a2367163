"""What an account asks of the resources in it: tags, keys of disks, names of roles."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dlcloud.model.cluster import NAME_TAG
from dlcloud.recipe.part import Form

# Source: EC2 user guide, "Tag restrictions": fifty tags, of which ten are left to dlcloud and AWS.
MOST_TAGS = 40
LONGEST_KEY = 128
LONGEST_VALUE = 256
_TAG_TEXT = re.compile(r"[\w\s.:/=+@-]*")


def _refuse_tags(tags: dict[str, str]) -> dict[str, str]:
    """Refuse tags that AWS would refuse, and those that are dlcloud's own."""
    if len(tags) > MOST_TAGS:
        raise ValueError(f"has {len(tags)} tags; at most {MOST_TAGS} fit beside dlcloud's own")
    for key, value in tags.items():
        if key == NAME_TAG or key.lower().startswith(("aws:", "dlcloud:")):
            raise ValueError(f"the tag {key!r} is set by AWS or by dlcloud")
        if not 0 < len(key) <= LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise ValueError(f"a tag has a key of 1 to {LONGEST_KEY} and a value of at most {LONGEST_VALUE}")
        if not _TAG_TEXT.fullmatch(key + value):
            raise ValueError(
                f"the tag {key!r} has characters other than letters, digits, spaces and _.:/=+-@"
            )
    return tags


Tags = Annotated[dict[str, str], AfterValidator(_refuse_tags)]

ProfileName = Annotated[
    str, Form(r"([\w+=,.@-]{1,128})?", "the name of an instance profile, without its path")
]
"""The name of an instance profile. Source: IAM API reference, CreateInstanceProfile."""

KmsKey = Annotated[
    str,
    Form(
        r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key|alias)/[\w/-]+|alias/[\w/-]+|[0-9a-f-]{36}"
        r"|mrk-[0-9a-f]{32})?",
        "a KMS key: its id, alias/NAME, or the ARN of either",
    ),
]
"""A KMS key as EC2 takes it: its id, its alias, or the ARN of either."""

PolicyArn = Annotated[str, Form(r"(arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+)?", "a policy's ARN")]

TAGS: Any = Field(
    default_factory=dict,
    description="Tags of your own on everything that is created: instances, volumes, network interfaces, "
    "security groups, launch templates, fleets, images, roles.",
)
BOUNDARY = Field(
    default="", description="The ARN of the permissions boundary of roles that dlcloud creates (up --detach)."
)
INSTANCE_PROFILE = Field(
    default="",
    description="The name of an instance profile that exists; instances have its role. Not with --detach.",
)
KMS_KEY = Field(
    default="",
    description="The KMS key of the root volume: an id, alias/… or an ARN; by default the account's for EBS.",
)
