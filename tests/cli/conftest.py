"""An installation for the command line's tests."""

from tests.support.cli_fixtures import commands_built_once, installation, nothing_of_an_earlier_command

__all__ = ["commands_built_once", "installation", "nothing_of_an_earlier_command"]
