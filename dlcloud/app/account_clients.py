"""The boto3 clients of one command: one set for each region and profile, made when first used."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from getpass import getpass

from dlcloud.app.profiles import find_profile
from dlcloud.app.terminal.console import Console
from dlcloud.cloud.api.clients import Clients
from dlcloud.local.site import LocalSite, SharedSite
from dlcloud.model.errors import CredentialsError


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountClients:
    """Makes the clients of AWS and of the local EC2, with the credentials of each.

    Args:
        profile: Returns the name of this command's profile; empty without one.
        local_site: Returns the local EC2, which is started if it does not run.
        console: Returns the console, which shows what is waited for.
        on_instance: This process runs on an instance, with its role.
    """

    profile: Callable[[], str]
    local_site: Callable[[], LocalSite | SharedSite]
    console: Callable[[], Console]
    on_instance: bool
    _made: dict[tuple[str, str, str], Clients] = field(default_factory=dict, init=False)

    def get(self, name: str, region: str, profile: str | None = None) -> Clients:
        """Return the clients of a cloud, a region and a profile, which is this command's by default."""
        named = profile if profile is not None else self.profile()
        # The local EC2 has keys of its own, and an instance its role.
        profile = "" if name == "local" or self.on_instance else named
        key = (name, region, profile)
        other = next((made for (n, _, p), made in self._made.items() if (n, p) == (name, profile)), None)
        if key not in self._made:
            self._made[key] = other.in_region(region) if other else self._make(*key)
        return self._made[key]

    def _make(self, name: str, region: str, profile: str) -> Clients:
        made = Clients(region=region, on_instance=self.on_instance, ask=self._ask_for_code)
        place = "the local EC2" if name == "local" else f"AWS in {region}"
        made.on_call = partial(self._show_call, f"asking {place} ...")
        chosen = find_profile(profile, purpose="the profile of its clusters")
        if chosen is not None:
            made.login = chosen.login
        if name == "local":
            with self.console().waiting("looking for the local EC2, or starting it ..."):
                endpoint = self.local_site().start()
            made.endpoint_url = endpoint.url
            if endpoint.started_at:
                made.began_at = datetime.fromisoformat(endpoint.started_at)
            if not made.on_instance:
                made.access_key = endpoint.owner_key()
        return made

    def _show_call(self, message: str, is_begun: bool) -> None:  # noqa: FBT001  a sink of two values
        if is_begun:
            self.console().begin_wait(message)
        else:
            self.console().end_wait()

    def _ask_for_code(self, text: str) -> str:
        """Ask for the MFA code of a profile, beside no other display."""
        if not sys.stdin.isatty():
            raise CredentialsError(
                "the AWS profile asks for an MFA code, and stdin is not a terminal",
                "run `aws sts get-caller-identity` in one first: its session is used here, too",
            )
        with self.console().suspended():
            return getpass(text)
