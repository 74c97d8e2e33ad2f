"""The documents about the cluster: Node, Cluster, Stray, Version (docs/api-documents.md §6, §8)."""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from primusd.views.documents import Number, Text


class _Document(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object with keys in camel case."""


class Amounts(_Document, frozen=True, kw_only=True):
    """What a node has, or what is in use of it."""

    cpu_milli: int
    memory_bytes: int
    gpus: int
    ports: int


class NodeFault(_Document, frozen=True, kw_only=True):
    """An infrastructure end that counts against a node."""

    at: str
    cause: str
    attempt: str


class NodeUsage(_Document, frozen=True, kw_only=True):
    """What the host reports; live."""

    at: Text = UNSET
    cpu_percent: Number = UNSET
    memory_free_bytes: Number = UNSET
    disk_free_bytes: Number = UNSET
    net_in_bytes_per_s: Number = UNSET
    net_out_bytes_per_s: Number = UNSET


class NodeLoad(_Document, frozen=True, kw_only=True):
    """What is used beyond what slots reserve, as last recorded: placing counts with it."""

    cpu_milli: int
    memory_bytes: int


class DrainLeft(_Document, frozen=True, kw_only=True):
    """An attempt that is still on a node that is being emptied."""

    namespace: str
    job: str
    replica: str
    attempt: int
    state: str
    """`moving`, `waiting` for a place, `queued` behind another of its role, `ending` with its
    job."""
    message: str


class NodeDrain(_Document, frozen=True, kw_only=True):
    """How far the emptying of a node is."""

    since: str
    now: bool
    done: bool
    left: tuple[DrainLeft, ...]


class KeptOff(_Document, frozen=True, kw_only=True):
    """A job that is kept off a node by a rule of its own, or by a person."""

    job: str
    until: str


class Node(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Node"):
    """A host that runs replicas."""

    name: str
    launcher: str
    resource_version: str
    phase: str
    since: str
    boot_id: str
    version: str
    capacity: Amounts
    used: Amounts
    labels: Mapping[str, str]
    faults: tuple[NodeFault, ...]
    excluded_until: Text = UNSET
    excluded_reason: Text = UNSET
    kept_off: tuple[KeptOff, ...] | UnsetType = UNSET
    load: NodeLoad | UnsetType = UNSET
    drain: NodeDrain | UnsetType = UNSET
    usage: NodeUsage | UnsetType = UNSET
    attempts: int


class NodeList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="NodeList"):
    """All nodes."""

    resource_version: str
    items: tuple[Node, ...]
    cursor: Text = UNSET


class NodeBootstrap(_Document, frozen=True, kw_only=True, tag_field="kind", tag="NodeBootstrap"):
    """What `primusd node --bootstrap FILE` needs; holds a key, so it is never logged."""

    name: str
    cluster: str
    heads: tuple[str, ...]
    key: str
    ca: Text = UNSET


class Member(_Document, frozen=True, kw_only=True):
    """A head."""

    name: str
    url: str
    version: str
    ready: bool
    """Whether it leads, or could at once."""


class StoreStatus(_Document, frozen=True, kw_only=True):
    """Where the journal is kept."""

    kind: str
    used_percent: Number = UNSET


class Copy(_Document, frozen=True, kw_only=True):
    """What a head that stands by has of the leader's state."""

    revision: str
    behind: int
    """Entries that it knows of and has not taken in."""
    age_ms: Number = UNSET
    """Since it was last known to be complete; absent: it never was."""
    refused: Text = UNSET
    """Why this head must not lead."""


class StoreServer(_Document, frozen=True, kw_only=True):
    """One server of a store."""

    url: str
    version: Text = UNSET
    bytes: Number = UNSET
    """Of its file, with the holes that what went has left."""
    bytes_in_use: Number = UNSET
    leads: bool = False
    """The other servers, which has nothing to do with the heads."""
    error: Text = UNSET
    """Why it tells nothing."""


class Store(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Store"):
    """Where the journal is kept, how large it is, and what it may take."""

    store: str
    """`embedded` or `etcd`."""
    place: str
    cluster: str
    cluster_id: str
    schema: int
    """Of the records that this primusd writes."""
    term: int
    revision: str
    bytes: int
    quota_bytes: Number = UNSET
    used_percent: Number = UNSET
    stop_percent: Number = UNSET
    """From where on no new job is taken."""
    free_bytes: Number = UNSET
    """Of the disk of an embedded store."""
    etcd_revision: Number = UNSET
    compacted_revision: Number = UNSET
    """Of etcd, before which nothing is kept; absent: it keeps all."""
    servers: tuple[StoreServer, ...] = ()
    refuses: Text = UNSET
    """Why no new job is taken now."""


class Cluster(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Cluster"):
    """Who leads, and how well the journal follows."""

    name: str
    id: str
    leader: str
    member: str
    term: int
    revision: str
    members: tuple[Member, ...]
    store: StoreStatus
    journal_lag_ms: Number = UNSET
    clock_skew_ms: int
    """By which the wall clock is ahead of journal time."""
    jobs: int
    pid: int
    wedged: Mapping[str, str]
    """Machines that stopped on a bug of ours, and what is known of it."""
    copy: Copy | UnsetType = UNSET
    """Of a head that stands by."""


class Stray(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Stray"):
    """A process that a launcher or an executor shows and this store does not know."""

    id: str
    job_uid: str
    replica: str
    attempt: int
    node: str
    launcher: str
    alive: bool
    reason: str
    since: Text = UNSET


class StrayList(_Document, frozen=True, kw_only=True, tag_field="kind", tag="StrayList"):
    """All strays."""

    resource_version: str
    items: tuple[Stray, ...]
    cursor: Text = UNSET


class Version(_Document, frozen=True, kw_only=True, tag_field="kind", tag="Version"):
    """Which program answers."""

    version: str
    api: str
    protocol: int
