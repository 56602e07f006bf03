"""An installation for the tests of the command line."""

from tests.support.cli_fixtures import commands_built_once, installation, nothing_of_an_earlier_command

__all__ = ["commands_built_once", "installation", "nothing_of_an_earlier_command"]
