"""What the patterns of a recipe's values mean in words, for the messages of values that have another form."""

FORMS = {
    r"^[a-z][a-z0-9-]{0,30}$": "lower-case letters, digits and hyphens, a letter first, 31 at most",
    r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$": "an instance type, as c7i.xlarge",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a variable's name: letters, digits and _, no digit first",
    r"^[a-z]{2}(-[a-z]+)+-\d$": "a region, as us-east-1",
    r"^([a-z]{2}(-[a-z]+)+-\d)?$": "a region, as us-east-1",
    r"^(auto|ami-[0-9a-f]+|dlcloud-[a-z0-9-]+|/[A-Za-z0-9_./-]+)$": (
        "auto, an AMI's id (ami-…), an image of dlcloud (dlcloud-…), or an SSM parameter (/…)"
    ),
    r"^[a-z_][a-z0-9_-]*$": "a login name: lower-case letters, digits, _ and -, no digit first",
    r"^([\w+=,.@-]{1,128})?$": "the name of an instance profile, without its path",
    r"^(arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+)?$": "a policy's ARN",
    r"^(arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+)?$": "a role's ARN",
    r"^https?://[^\s/@]+(/[^\s@]*)?$": "an address that begins with http:// or https://",
    r"^[A-Za-z][A-Za-z0-9_-]{0,39}$": "letters, digits, _ and -, a letter first, 40 at most",
    r"^s3://": "an address that begins with s3://",
    r"^[A-Za-z0-9_.][A-Za-z0-9_./-]*$": "a path below the job's folder, of letters, digits, _, . and -",
    r"^([a-z0-9][A-Za-z0-9._:/@-]*)?$": "the name of a container image, as python:3.12",
    r"^[a-z][a-z0-9_]{0,30}$": "lower-case letters, digits and _, a letter first, 31 at most",
}
"""By pattern; `tests/unit/recipe/test_forms.py` holds that each is one of a recipe's."""


def form_of(pattern: str) -> str:
    """Return what a value must be to fit a pattern; the pattern itself if no words are known."""
    return FORMS.get(pattern, f"of the form {pattern}")
