"""boto3 clients of a Region, with the login that they use: every call of AWS begins here.

A command makes one `Clients`; the objects of `cloud.ec2` ask it for a client when they first call a service,
and it is kept, as one costs tens of milliseconds to create. There are three logins: the local EC2's own key,
the role of the instance that this process runs on, or the user's (`open_session`: profiles of the AWS CLI,
roles, MFA and SSO, with the CLI's own cache of sessions). The user's credentials never reach the local EC2.

Calls are repeated by botocore, but not launches: `get_without_retries`. A denial that EC2 encodes is decoded
before anyone reads the answer.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from getpass import getpass
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import boto3
import botocore.client
import botocore.session
import botocore.utils
from botocore import exceptions as boto
from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth, SigV4Auth
from botocore.auth import SIGV4_TIMESTAMP as SIGNED_TIME
from botocore.client import ClientCreator
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    DeferredRefreshableCredentials,
    create_mfa_serial_refresher,
)
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session, get_session
from botocore.utils import JSONFileCache

from dlcloud.cloud.api.faults import (
    LATE_PAUSES_S,
    NOT_VISIBLE,
    SERVER_ERROR,
    retry_codes,
    translate_errors,
)
from dlcloud.cloud.api.partitions import check_region
from dlcloud.model.account import Login
from dlcloud.model.errors import ENCODED, CredentialsError, read_decoded, read_denial

# Repeated for throttling and dropped connections, with growing, jittered pauses.
_RETRIED = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 8})
# For launches: botocore would answer "no capacity" (HTTP 500) with four more tries of one pool.
_TRIED_ONCE = Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 1})
BAD_REQUEST = 400  # HTTP: from here on the fault is the client's
MOST_SKEW = timedelta(minutes=4)
"""AWS refuses a signature whose time differs by more than five minutes from its own."""
IMDS_TRIES = 3
ROLE_TRIES = 60
ROLE_PAUSE_S = 1.0
CLI_CACHE = Path("~/.aws/cli/cache")
"""Where the AWS CLI keeps sessions of roles, and this program with it: neither asks for a code again."""
SSO_CACHE = Path("~/.aws/sso/cache")
CACHED_PROVIDERS = ("assume-role", "assume-role-with-web-identity", "sso")
SSO_ERRORS = (boto.SSOError, boto.TokenRetrievalError)
Ask = Callable[[str], str]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Clients:
    """The clients of one region.

    Args:
        region: The AWS region.
        endpoint_url: URL of the local EC2; empty for AWS, which is reached at its own addresses whatever the
            environment and `~/.aws/config` say, except for those services that `login.endpoints` names.
        on_instance: This process runs on an instance and uses its role, which may come some seconds later.
        pause: Waits some seconds.
        ask: Asks the user for the MFA code of a profile.
        on_call: Called with True before each call, with False after it; from any thread.
        login: The AWS profile and the role to use; what the environment says without one.
        began_at: The local EC2's: it knows nothing of what was before. None for AWS.
    """

    region: str
    endpoint_url: str = ""
    access_key: tuple[str, str] = ("local", "local")
    session_token: str = ""
    on_instance: bool = False
    pause: Callable[[float], None] = time.sleep
    ask: Callable[[str], str] = getpass
    login: Login = field(default_factory=Login)
    on_call: Callable[[bool], None] = lambda _: None
    began_at: datetime | None = None
    _session: Any = None
    _clients: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Refuse a region that does not exist, before its address is looked up.

        Raises:
            RecipeError: There is none of that name.
        """
        check_region(self.region)

    def get(self, service: str, region: str = "") -> Any:  # noqa: ANN401  boto3 has no types
        """Return a client that repeats failed calls: for calls that are safe to repeat."""
        return self._client(service, region or self.region, _RETRIED, "retried")

    def get_without_retries(self, service: str = "ec2") -> Any:  # noqa: ANN401  boto3 has no types
        """Return a client whose calls are tried once: for launches, and for what has no token."""
        return self._client(service, self.region, _TRIED_ONCE, "tried once")

    def call_until_visible(self, method: str, **arguments: object) -> Any:  # noqa: ANN401  boto3 has no types
        """Call EC2 on what was created a moment ago; repeat it for 30 s while EC2 does not know it yet."""
        call = getattr(self.get("ec2"), method)
        return retry_codes(call, arguments, NOT_VISIBLE, pauses_s=LATE_PAUSES_S, pause=self.pause)

    def pages(self, service: str, method: str, key: str, **arguments: object) -> list[Any]:
        """Return the items under `key` of every page that a method answers."""
        client = self.get(service)
        with self._lock:  # the first one reads files, which threads would read in parallel
            paginator = client.get_paginator(method)
        return [item for page in paginator.paginate(**arguments) for item in page[key]]

    def identity(self) -> str:
        """Return a digest that distinguishes accounts, and local EC2s; a new login does not change it."""
        with self._lock, translate_errors("finding credentials"):
            name = _account_name(self._session_of(self.region))
        return hashlib.sha256(f"{name} {self.endpoint_url}".encode()).hexdigest()[:16]

    def aws_profile(self) -> str:
        """Return the profile of the AWS CLI that is used; empty for none, and for the local EC2."""
        if self.endpoint_url or self.on_instance:
            return ""
        with self._lock, translate_errors("finding credentials"):
            core = self._session_of(self.region)._session  # noqa: SLF001  boto3 shows no settings of a profile
            return str(core.get_config_variable("profile") or "")

    def credentials(self) -> Any:  # noqa: ANN401  boto3 has no types
        """Return the credentials of now, for what botocore does not sign itself."""
        with self._lock, translate_errors("finding credentials"):
            current = self._session_of(self.region).get_credentials()
            if current is None:
                raise boto.NoCredentialsError
            return current.get_frozen_credentials()

    def session_ends_at(self) -> datetime | None:
        """Return when the login ends that no call can renew: begun with an MFA code, or stated with its end.

        None for what renews itself, for the local EC2, and where the end is not known.
        """
        if self.endpoint_url or self.on_instance:
            return None
        with self._lock, translate_errors("finding credentials"):
            session = self._session_of(self.region)
            credentials = session.get_credentials()
            core = session._session  # noqa: SLF001  as above
            profile = core.get_scoped_config() if core.get_config_variable("profile") else {}
            if credentials is None:
                return None
            if credentials.method == "sso":
                return _sso_ends_at(profile)
            has_code = bool(self.login.mfa_serial or profile.get("mfa_serial"))
            ends: datetime | None = getattr(credentials, "_expiry_time", None)
            return ends if credentials.method == "env" or has_code else None

    def in_region(self, region: str) -> "Clients":
        """Return the clients of another region, which share the session: it is costly to load."""
        with self._lock, translate_errors(f"using AWS in {region}"):
            self._session_of(self.region)
            return replace(self, region=region, _clients={})

    def _client(self, service: str, region: str, config: Config, kind: str) -> Any:  # noqa: ANN401
        with self._lock, translate_errors(f"using {service} in {region}"):
            key = (f"{service}/{region}", kind)
            if key not in self._clients:
                url = self.endpoint_url or self.login.endpoints.get(service)
                client = self._session_of(region).client(
                    service, region_name=region, endpoint_url=url, config=config
                )
                events = client.meta.events
                events.register_first("needs-retry", correct_clock)
                events.register("before-call", lambda **_: self.on_call(True))
                events.register("after-call", lambda **_: self.on_call(False))
                events.register("after-call-error", lambda **_: self.on_call(False))
                events.register("after-call", lambda parsed, **_: decode_denials(self, parsed))
                self._clients[key] = client
            return self._clients[key]

    def _session_of(self, region: str) -> Any:  # noqa: ANN401
        if self._session is None:
            self._session = self._open_session(region)
            core = self._session._session  # noqa: SLF001  as below
            ignore_configured_endpoints(core)
            _CLASSES.setdefault(core.get_component("event_emitter"), {})
            parsers = core.get_component("response_parser_factory")
            parsers.set_parser_defaults(timestamp_parser=parse_timestamp)
        return self._session

    def _open_session(self, region: str) -> Any:  # noqa: ANN401
        if self.on_instance:
            return self._with_role(region)
        if self.endpoint_url:
            # The user's own credentials must never be used there.
            key_id, secret = self.access_key
            # Nor their configuration, which may be broken: without variables, it names a profile and files.
            files = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
            core = Session(session_vars={"profile": (None, None, None, None), **files})
            return boto3.Session(
                region_name=region,
                aws_access_key_id=key_id,
                aws_secret_access_key=secret,
                aws_session_token=self.session_token or None,
                botocore_session=core,
            )
        return open_session(self.login, region, self.ask)

    def _with_role(self, region: str) -> Any:  # noqa: ANN401
        """Return a session; wait until the instance has credentials, some seconds after its profile."""
        core = get_session()
        core.set_config_variable("metadata_service_num_attempts", IMDS_TRIES)
        session = boto3.Session(region_name=region, botocore_session=core)
        for _ in range(ROLE_TRIES):
            if session.get_credentials() is not None:
                break
            self.pause(ROLE_PAUSE_S)
        return session


class _Creator(ClientCreator):  # type: ignore[misc]  # botocore has no types
    """Makes the class of a service's clients once in a session: in ten Regions, EC2's has 8,000 methods."""

    def _create_client_class(self, service_name: str, service_model: Any) -> Any:  # noqa: ANN401
        made = _CLASSES.get(self._event_emitter)
        if made is None:  # not a session of ours
            return super()._create_client_class(service_name, service_model)
        if service_name not in made:
            made[service_name] = super()._create_client_class(service_name, service_model)
        return made[service_name]


_CLASSES: "WeakKeyDictionary[Any, dict[str, Any]]" = WeakKeyDictionary()
"""The classes of clients, by the event emitter of the session and by service."""
botocore.client.ClientCreator = _Creator


class _CorrectedAuth:
    """Signs by the server's clock where this machine's has jumped; `ahead` is of all clients."""

    ahead = timedelta()

    def _modify_request_before_signing(self, request: Any) -> None:  # noqa: ANN401  botocore has no types
        request.context["timestamp"] = f"{datetime.now(UTC) + _CorrectedAuth.ahead:{SIGNED_TIME}}"
        super()._modify_request_before_signing(request)  # type: ignore[misc]  # of the signer next to it


for _version, _auth in (("v4", SigV4Auth), ("s3v4", S3SigV4Auth)):
    AUTH_TYPE_MAPS[_version] = type(f"Corrected{_auth.__name__}", (_CorrectedAuth, _auth), {})


def correct_clock(
    response: tuple[Any, Any] | None, request_dict: dict[str, Any], **_: object
) -> float | None:
    """Repeat a refused call, signed by the clock of the server, if this machine's clock differs from it.

    A clock that jumps while a command runs must not keep it from terminating what it has launched. Nothing of
    a call is carried out that is refused for its time, so that launches are repeated, too. Calls are made in
    parallel: what counts is when this one was signed, not how far another one has corrected the clock since.
    """
    if response is None or not BAD_REQUEST <= response[0].status_code < SERVER_ERROR:
        return None
    try:
        signed_at = datetime.strptime(request_dict["context"]["timestamp"], SIGNED_TIME).replace(tzinfo=UTC)
        date = parsedate_to_datetime(response[0].headers["Date"])
    except (KeyError, TypeError, ValueError):
        return None
    if abs(date - signed_at) < MOST_SKEW:
        return None
    ahead = date - datetime.now(UTC)
    log.warning("this machine's clock differs by %s from the server's: compare date -u", ahead)
    _CorrectedAuth.ahead = ahead
    return 0.0


def _account_name(session: Any) -> str:  # noqa: ANN401  boto3 has no types
    """Return what stands for the account of a session: its id, else its profile, else its access key.

    Only keys without a token stay the same; the others change with each login.
    """
    credentials = session.get_credentials()
    if credentials is None:
        return ""
    frozen = credentials.get_frozen_credentials()
    if account := getattr(frozen, "account_id", None):
        return str(account)
    core = session._session  # noqa: SLF001  boto3 shows no settings of a profile
    profile = core.get_config_variable("profile")
    if frozen.token and profile:
        return json.dumps([profile, core.get_scoped_config()], sort_keys=True, default=str)
    return str(frozen.access_key)


def _sso_ends_at(profile: dict[str, Any]) -> datetime | None:
    """Return when the token of an SSO login ends; None if it renews itself, or is not found.

    Source: botocore.utils.SSOTokenLoader, for the name of its file.
    """
    name = profile.get("sso_session") or profile.get("sso_start_url") or ""
    file = SSO_CACHE.expanduser() / f"{hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()}.json"
    try:
        token = json.loads(file.read_text())
        return None if token.get("refreshToken") else parse_timestamp(token["expiresAt"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def ignore_configured_endpoints(core: Any) -> None:  # noqa: ANN401  boto3 has no types
    """Let no client of a session, nor what it assumes roles with, go where AWS_ENDPOINT_URL points.

    That variable, which `dlcloud local start` prints for others, would send a real run to this machine.
    """
    core.set_config_variable("ignore_configured_endpoint_urls", True)


def profiles_of_account(account: str) -> list[str]:
    """Return the profiles of `~/.aws/config` that name an account: by SSO, or by a role to assume."""
    try:
        profiles = botocore.session.Session().full_config["profiles"]
    except boto.BotoCoreError:
        return []
    return sorted(
        name
        for name, values in profiles.items()
        if values.get("sso_account_id") == account or f"::{account}:" in str(values.get("role_arn", ""))
    )


def open_session(login: Login, region: str, ask: Ask) -> Any:  # noqa: ANN401  boto3 has no types
    """Return a session of boto3 whose credentials are found and valid; MFA codes are asked for by `ask`.

    Raises:
        CredentialsError: There are none, they have expired, or the role may not be assumed.
    """
    cache = JSONFileCache(str(CLI_CACHE.expanduser()))
    with translate_errors("finding credentials"):
        core = _find_credentials(login, ask, cache)
    if login.role:
        with translate_errors(f"assuming the role {login.role} (sts:AssumeRole)"):
            core._credentials = _assume_role(core, login, region, ask, cache)  # noqa: SLF001  as above
            core._credentials.get_frozen_credentials()  # noqa: SLF001
    return boto3.Session(region_name=region, botocore_session=core)


def _find_credentials(login: Login, ask: Ask, cache: JSONFileCache) -> Any:  # noqa: ANN401
    """Return a session whose credentials are loaded: one that has expired is reported with what renews it."""
    core = botocore.session.Session(profile=login.aws_profile or None)
    ignore_configured_endpoints(core)
    try:
        providers = core.get_component("credential_provider")
        for name in CACHED_PROVIDERS:
            providers.get_provider(name).cache = cache
        providers.get_provider("assume-role")._prompter = ask  # noqa: SLF001  it can be set in no other way
        credentials = core.get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()
    except SSO_ERRORS as error:
        profile = login.aws_profile or core.get_config_variable("profile") or ""
        command = f"aws sso login{f' --profile {profile}' if profile else ''}"
        message = f"finding credentials: the AWS credentials are not valid ({error})"
        raise CredentialsError(message, command) from error
    except boto.ProfileNotFound as error:
        name = login.aws_profile or core.get_config_variable("profile")
        message = f"finding credentials: ~/.aws/config has no profile {name}"
        raise CredentialsError(message, "aws configure list-profiles") from error
    return core


def _assume_role(core: Any, login: Login, region: str, ask: Ask, cache: JSONFileCache) -> Any:  # noqa: ANN401
    """Return credentials of the role, which are renewed until MFA would have to be asked for again.

    Source: botocore.credentials, AssumeRoleProvider, which does the same for profiles of `~/.aws/config`.
    """
    source = core.get_credentials()
    if source is None:
        raise boto.NoCredentialsError
    arguments = {
        "ExternalId": login.external_id,
        "RoleSessionName": login.session_name,
        "SerialNumber": login.mfa_serial,
        "DurationSeconds": login.role_minutes * 60,
    }
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(
            core.create_client, region_name=region, endpoint_url=login.endpoints.get("sts")
        ),
        source_credentials=source,
        role_arn=login.role,
        extra_args={name: value for name, value in arguments.items() if value},
        mfa_prompter=ask,
        cache=cache,
    )
    refresh = fetcher.fetch_credentials
    if login.mfa_serial:
        refresh = create_mfa_serial_refresher(refresh)
    return DeferredRefreshableCredentials(
        method="assume-role", refresh_using=refresh, time_fetcher=lambda: datetime.now(UTC)
    )


def parse_timestamp(value: object) -> datetime:
    """Return the time of an answer; EC2's, of which a thousand instances have thousands, in 1/50 of the time.

    Raises:
        ValueError: It is in none of botocore's forms.
    """
    if isinstance(value, str) and value.endswith("Z"):
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value)
    parsed: datetime = botocore.utils.parse_timestamp(value)
    return parsed


def decode_denials(clients: "Clients", parsed: dict[str, Any]) -> None:
    """Replace the encoded messages of an answer, of its pools too, by what they say."""
    for error, key in _errors(parsed):
        plain, mark, encoded = str(error.get(key, "")).partition(ENCODED)
        if mark:
            text = "" if read_denial(plain) else decode(clients, encoded.strip())
            error[key] = text or plain.strip()


def decode(clients: "Clients", encoded: str) -> str:
    """Return an encoded message in AWS's words; empty where the caller may not decode it."""
    try:
        answer = clients.get("sts").decode_authorization_message(EncodedMessage=encoded)
        return read_decoded(answer["DecodedMessage"])
    except (ClientError, BotoCoreError, ValueError, KeyError) as error:
        log.info("a denial was not decoded: %s", error)
        return ""


def _errors(parsed: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(parsed.get("Error"), dict):
        yield parsed["Error"], "Message"
    for error in parsed.get("Errors") or ():
        if isinstance(error, dict):
            yield error, "ErrorMessage"
