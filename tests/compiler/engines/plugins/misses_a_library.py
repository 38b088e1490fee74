"""Needs a package that is not there."""

import surely_not_installed  # noqa: F401
