"""The environment variables that commands read and set."""

PROFILE_VARIABLE = "DLCLOUD_PROFILE"
CONTROLLER_VARIABLE = "DLCLOUD_CONTROLLER"
