"""The fixture ``dmf``, which runs a command line."""

from command_line import dmf as dmf
