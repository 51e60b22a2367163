"""Repeat a launch that was throttled, and nothing else.

botocore's own retries cannot be used for launches: "no capacity" comes as a server error, which they repeat.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.faults import THROTTLED, error_code

TRIES = 8
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 20.0


def retry_throttled(
    call: Callable[..., Any], arguments: Mapping[str, Any], *, pause: Callable[[float], None]
) -> Any:  # noqa: ANN401  boto3 has no types
    """Make a call; where it is throttled, repeat it after pauses that double, shortened at random.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (with a floor of a half).
    """
    longest = FIRST_PAUSE_S
    for _ in range(TRIES - 1):
        try:
            return call(**arguments)
        except ClientError as error:
            if error_code(error) not in THROTTLED:
                raise
        pause(longest * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        longest = min(2 * longest, LONGEST_PAUSE_S)
    return call(**arguments)
