"""The caller's own address, as the internet sees it."""

import ipaddress
import urllib.request

from dlcloud.core.errors import CloudError

CHECK_URL = "https://checkip.amazonaws.com"


def own_cidr() -> str:
    """Return the caller's public address as a network of one.

    Raises:
        CloudError: The address could not be learned, or the answer is not an address.
    """
    hint = "give it yourself: --cidr 203.0.113.7/32"
    try:
        with urllib.request.urlopen(CHECK_URL, timeout=10) as answer:
            text = answer.read(64).decode("ascii", "replace").strip()
        return str(ipaddress.ip_network(text))
    except OSError as error:
        raise CloudError(f"this machine's public address could not be learned ({error})", hint) from error
    except ValueError as error:
        raise CloudError(f"{CHECK_URL} did not answer with an address but with {text!r}", hint) from error
