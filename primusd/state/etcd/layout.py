"""Where things lie in etcd, below `/primusd/v1/<cluster>/`."""

REVISION_DIGITS = 16
REVISION_MAX = 10**REVISION_DIGITS - 1


class Layout:
    """The keys of one cluster.

    Attributes:
        prefix: Of all of them.
    """

    def __init__(self, cluster: str) -> None:
        self.prefix = f"/primusd/v1/{cluster}/".encode()
        self.leader = self.prefix + b"leader"
        self.lane = self.prefix + b"lane"
        self.schema = self.prefix + b"schema"
        self.cluster = self.prefix + b"cluster"
        self.secret = self.prefix + b"secret"
        self.moved = self.prefix + b"moved"
        self.members = self.prefix + b"members/"
        self.journal = self.prefix + b"journal/"
        self.snapshots = self.prefix + b"snapshots/"
        self.redo = self.prefix + b"redo/"

    def member(self, name: str) -> bytes:
        """Return the key of a head."""
        return self.members + name.encode()

    def entry(self, revision: int) -> bytes:
        """Return the key of an entry; keys sort as their revisions."""
        return self.journal + f"{revision:0{REVISION_DIGITS}d}".encode()

    def snapshot(self, machine: str) -> bytes:
        """Return the key of a snapshot; that of admission, "", ends in the slash."""
        return self.snapshots + machine.encode()


def part(key: bytes, number: int) -> bytes:
    """Return the key of a further part of a value; `!` is in no name, and sorts before `/`."""
    return key + b"!%04d" % number


def split(key: bytes) -> tuple[bytes, int]:
    """Return the key of a value, and which part of it a key is."""
    name, mark, number = key.partition(b"!")
    return (name, int(number)) if mark else (key, 0)
