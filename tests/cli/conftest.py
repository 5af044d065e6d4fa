"""The command line, run in this process, and the small corpus."""

from command_line import dmf as dmf
from small_runs import corpus as corpus
