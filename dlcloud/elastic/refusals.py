"""Refusals of requests for instances that no waiting can mend."""

from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.errors import CloudError, CredentialsError, RemoteCommandError

SETUP_ERRORS = (CredentialsError, RemoteCommandError)
"""Those of a set-up that say nothing about its instance."""


def final_error(grown: LaunchedMembers | None, error: BaseException | None) -> CloudError | None:
    """Return the refusal of a request as denied or invalid; None for any other."""
    refusals = () if grown is None else grown.refusals
    errors = [error, *(refusal.error for refusal in refusals)]
    return next((error for error in errors if isinstance(error, CloudError) and error.is_final), None)
