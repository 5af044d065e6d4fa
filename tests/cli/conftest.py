"""The command line, run in this process."""

from command_line import dmf as dmf
