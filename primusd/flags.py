"""The flags of `primusd` (docs/config.md §1); every other setting is in the file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from primusd import __version__

DESCRIPTION = """The daemon of primus: it runs training jobs and feeds them their data.

Without any flag it keeps its state in ~/.local/state/primusd (root: /var/lib/primusd) and answers
on a socket and on http://localhost:8080."""

EPILOG = """exit codes:
  0 stopped as asked   1 runtime failure   2 configuration   3 the state directory is in use
  4 the store was written by a newer version   5 an address that was asked for is in use
signals:
  TERM, INT  stop the daemon; trainers run on, and the next start takes them up again
  HUP        read the configuration again    USR1  write state and stacks to the log"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the daemon's flags."""
    made = argparse.ArgumentParser(
        prog="primusd",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--config", type=Path, metavar="FILE", help="configuration file (TOML)")
    add("--state-dir", metavar="DIR", help="where the state is kept; a local disk")
    add("--run-dir", metavar="DIR", help="where the socket, the token and the pid file go")
    add("--listen", metavar="ADDR", help='TCP address of API and page; "" for none')
    add("--socket", metavar="PATH", help="unix socket of the API")
    add("--store", metavar="STORE", help="embedded, or etcd://host1,host2")
    add("--cluster", metavar="NAME", help="name of the cluster")
    add("--no-node", action="store_true", help="start no node on this host")
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    add("--log-format", metavar="FORMAT", help="text or json")
    add("--check-config", action="store_true", help="print the configuration in force, and end")
    add(
        "--ephemeral",
        action="store_true",
        help="state in a temporary folder, or in --state-dir; an orderly stop cancels all jobs, "
        "ends the node and removes it",
    )
    add("--insecure", action="store_true", help="let a listener beyond loopback do without TLS")
    add("--version", action="version", version=f"primusd {__version__}")
    return made


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the flags; ends the process with 2 and a usage line when they are wrong."""
    return parser().parse_args(words)
