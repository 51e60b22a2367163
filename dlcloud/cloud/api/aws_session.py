"""Sessions of AWS: profiles of the AWS CLI, roles, MFA and SSO, with the CLI's own cache of sessions."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore import exceptions as boto
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    DeferredRefreshableCredentials,
    create_mfa_serial_refresher,
)
from botocore.utils import JSONFileCache

from dlcloud.cloud.api.faults import translate_errors
from dlcloud.model.errors import CredentialsError
from dlcloud.model.login import Login

CLI_CACHE = Path("~/.aws/cli/cache")
"""Where the AWS CLI keeps sessions of roles, and this program with it: neither asks for a code again."""
CACHED_PROVIDERS = ("assume-role", "assume-role-with-web-identity", "sso")
SSO_ERRORS = (boto.SSOError, boto.TokenRetrievalError)

Ask = Callable[[str], str]


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
        client_creator=partial(core.create_client, region_name=region),
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
