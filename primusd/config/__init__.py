"""The daemon's configuration: what can be set, and how flags, environment and file meet."""

from primusd.config.reader import NotYetConfigError, load
from primusd.config.reload import Changes, changes
from primusd.config.settings import Config, Directories, Loaded
from primusd.config.show import check_text, problem_text
from primusd.config.values import split_address

__all__ = [
    "Changes",
    "Config",
    "Directories",
    "Loaded",
    "NotYetConfigError",
    "changes",
    "check_text",
    "load",
    "problem_text",
    "split_address",
]
