"""The control pages of a local EC2 that tests alone call: faults, delays, and what boots do."""

from dlcloud.local.control import ControlClient


class HarnessControl(ControlClient):
    """A client of all pages."""

    __slots__ = ()

    def add_account(self, account_id: str) -> tuple[str, str]:
        """Make another account; return the id and the secret of a new access key of its administrator."""
        answer = self.call("POST", "account", {"account_id": account_id})
        return str(answer["key_id"]), str(answer["secret"])

    def move_trace(self, seconds: float) -> None:
        """Set the position in the traces."""
        self.call("POST", "trace-position", {"seconds": seconds})

    def set_cache(self, *, shared: bool) -> None:
        """Let new instances share the site's `~/.cache`, or give each its own, as on EC2."""
        self.call("POST", "cache", {"shared": shared})

    def set_boot_delay(self, seconds: float) -> None:
        """Keep new instances in `pending` for this long."""
        self.call("POST", "boot-delay", {"seconds": seconds})

    def fail_boots(self, fault: str, count: int = 1) -> None:
        """Let the next boots fail: `ends` or `no-key` while pending, or `silent`: SSH never answers."""
        self.call("POST", "boot-faults", {"fault": fault, "count": count})

    def set_minute(self, seconds: float) -> None:
        """Set the length of a minute of the timers on new instances."""
        self.call("POST", "minute", {"seconds": seconds})

    def set_apt_lock(self, seconds: float) -> None:
        """Have a job of the image hold apt's locks on new instances, for so long from their boot on."""
        self.call("POST", "apt-lock", {"seconds": seconds})

    def set_machine(self, command: str) -> None:
        """Have new instances run a shell command that boots a virtual machine, until it powers off.

        The command gets SSH_ADDRESS, at which the machine must answer, METADATA_ADDRESS, MAC_ADDRESS,
        INSTANCE_ID, and the instance's folder in DLCLOUD_ROOT; its output is the console. An empty command:
        processes again.
        """
        self.call("POST", "machine", {"command": command})

    def set_role_session(self, seconds: float) -> None:
        """Set how long new credentials of instance profiles are valid."""
        self.call("POST", "role-session", {"seconds": seconds})

    def set_latency(self, seconds: float) -> None:
        """Delay every API call."""
        self.call("POST", "latency", {"seconds": seconds})

    def set_visibility(self, longest_s: float, seed: int = 0) -> None:
        """Show new instances, security groups and launch templates late: half of this to this long.

        The delays are random, by the seed. At 0, all that is hidden appears.
        """
        self.call("POST", "visibility", {"longest_s": longest_s, "seed": seed})

    def add_fault(
        self,
        action: str,
        code: str,
        *,
        times: int | None = None,
        rate: float | None = None,
        status: int = 400,
        skip: int = 0,
        carried_out: bool = False,
    ) -> None:
        """Refuse calls of an action, or of every action ("*"), with an error code and its HTTP status.

        With `times`, only the next calls are refused; with `rate`, this share of them, 0 to 1, evenly spread;
        with `skip`, so many calls pass first. A status of 0 closes the connection without an answer. With
        `carried_out`, the call takes effect, and only its answer is lost.
        """
        fault = {"action": action, "code": code, "times": times, "rate": rate, "status": status}
        self.call("POST", "faults", {**fault, "skip": skip, "carried_out": carried_out})

    def clear_faults(self) -> None:
        self.call("DELETE", "faults")

    def calls(self) -> dict[str, int]:
        """Return the number of calls by action, refused calls included."""
        calls = self.call("GET", "calls")["calls"]
        return {str(action): int(count) for action, count in calls.items()}

    def reset_calls(self) -> None:
        self.call("DELETE", "calls")


def control_of(endpoint):
    """Return the client of a running local EC2."""
    return HarnessControl(url=endpoint.control.url, token=endpoint.control.token)
