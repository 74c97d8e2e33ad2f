"""The effective spec of a job: every default filled, every unit parsed (docs/jobspec.md)."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.job.decoding import Decoding

REPLICAS_MAX = 20_000


class Resources(Struct, frozen=True):
    """What one replica takes."""

    cpu_milli: int = 0
    """Thousandths of a core; 0 takes no slot."""
    memory_bytes: int = 0
    """0 no limit."""
    gpu: int = 0


class Ready(Struct, frozen=True):
    """How it is told that a trainer is ready; a role without one is ready at its start."""

    kind: str
    """`port`, `file` or `sdk`."""
    value: str = ""
    """Name of a port, or a path below the working directory."""


class Reading(Struct, frozen=True):
    """A stream that a role reads."""

    stream: str
    own_pass: bool = False
    """`data: {clicks: all}`: the role has a pass of its own and shares no rows with others."""


class Success(Struct, frozen=True):
    """What a role must reach for the job to succeed."""

    kind: str = "all"
    """`all`, `any`, `percent` or `never` (a helper, stopped when the others are done)."""
    percent: int = 100


class Restart(Struct, frozen=True):
    """What restarts together after a failure, and when."""

    unit: str = "replica"
    """`replica`, `role` or `job`."""
    delay_ms: int = 10_000
    delay_max_ms: int = 300_000
    keep_ports: bool = False
    """A role that restarts whole keeps its nodes and ports."""


class Budgets(Struct, frozen=True):
    """How many ends of each kind are forgiven within a time."""

    application: int = 3
    infrastructure: int = 20
    within_ms: int = 86_400_000
    replica: int = -1
    """Of one replica, both kinds together; -1 no bound of its own."""


class FailureRule(Struct, frozen=True):
    """What follows an end that meets every condition given."""

    action: str = "restart"
    """`restart`, `fail`, `giveUp` or `complete`."""
    causes: tuple[str, ...] = ()
    """Names of `rules.CAUSES`; empty: any."""
    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    log_match: str = ""
    roles: tuple[str, ...] = ()
    budget: str = ""
    """`application`, `infrastructure` or `none`; "" as the cause says."""
    unit: str = ""
    """`replica`, `role` or `job`; "" as the role says."""
    delay_ms: int = -1
    """-1: as the role says."""
    memory_per_mille: int = 1000
    memory_max_bytes: int = 0
    """0 none."""
    exclude_node_ms: int = 0


class Hang(Struct, frozen=True):
    """When a trainer counts as hung, and what then."""

    after_ms: int = 0
    """0 never."""
    action: str = "report"
    """`report` or `restart`."""
    phase_after_ms: int = 0
    """Within a phase that the trainer declared; 0 never."""


class Stop(Struct, frozen=True):
    """How a trainer is stopped."""

    signal: str = "TERM"
    grace_ms: int = 30_000


class Placement(Struct, frozen=True, omit_defaults=True):
    """Which nodes a role's replicas go to, and beside whom (`admission/placement.py`)."""

    max_per_node: int = 0
    """Of its replicas; 0 any number."""
    near: tuple[str, ...] = ()
    """Roles of which one has to be on the same node; the own name: all of it on one node."""
    apart: tuple[str, ...] = ()
    """Roles of which none may be on the same node."""
    nodes: Mapping[str, str] = {}
    """Labels that the node must have."""


class ShippedSpec(Struct, frozen=True):
    """A file sent with the job: named by content once it was sent."""

    path: str
    """Relative, with forward slashes; where it is laid out."""
    digest: str = ""
    """`sha256:…`; "" not sent yet."""
    byte_count: int = 0
    mode: int = 0o644
    unpack: bool = False
    """The blob is a tar of a folder."""
    url: str = ""
    """Where the client fetches it from before it sends it; "" a path of its own."""


class RoleSpec(Struct, frozen=True):
    """A role: replicas of one command."""

    name: str
    replicas: int
    minimum: int
    """Equal to `replicas` unless the role is elastic."""
    command: str | tuple[str, ...]
    """A string is a shell line, a tuple is argv."""
    resources: Resources = Resources()
    env: Mapping[str, str] = {}
    workdir: str = ""
    """Absolute; "" the replica's own directory."""
    ports: tuple[str, ...] = ("main",)
    ready: Ready | None = None
    data: tuple[Reading, ...] = ()
    feed: str = "sdk"
    """`sdk`, `stdin` or `fifo`."""
    framing: str = "lines"
    """Of a stdin feed: `lines` or `raw`."""
    success: Success = Success()
    drain_ms: int = 0
    """For how long a helper may go on after the verdict."""
    restart: Restart = Restart()
    budgets: Budgets | None = None
    """None: the job's apply."""
    stop: Stop = Stop()
    placement: Placement = Placement()
    depends_on: Mapping[str, str] = {}
    """Roles that it waits for, and how far each has to come: `started`, `ready` or `completed`."""
    has_minimum: bool = False
    """The file gives a minimum: where no gang does it, none starts before so many are there."""


class KafkaSecurity(Struct, frozen=True):
    """How a cluster is spoken to. What is secret stays in files, on every host that reads."""

    protocol: str = "PLAINTEXT"
    """`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
    mechanism: str = ""
    """`PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; "" without SASL."""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    """PEM; "" the authorities that the host trusts."""
    cert_file: str = ""
    """PEM, of the client; "" it shows none."""
    key_file: str = ""


class Offsets(Struct, frozen=True):
    """Where partitions begin or end to be read."""

    kind: str
    """`earliest`, `latest`, `committed`, `offset` or `time` to start; `never`, `end`, `offset` or
    `time` to end.
    """
    at_ms: int = 0
    """Of `time`: the first record of this time or later."""
    offset: int = -1
    """Of `offset`: in every partition that `offsets` does not name; -1: those are not read."""
    offsets: Mapping[int, int] = {}
    """By partition."""


class KafkaSource(Struct, frozen=True):
    """Topics of one cluster."""

    bootstrap: tuple[str, ...]
    """`host:port`."""
    topics: tuple[str, ...]
    start: Offsets = Offsets("earliest")
    until: Offsets = Offsets("never")
    group: str = ""
    """Whose committed offsets are a start, and to which acknowledged ones are mirrored."""
    is_mirrored: bool = True
    isolation: str = "committed"
    """`committed` or `uncommitted`: whether records of transactions that are open or were given
    up are left out.
    """
    security: KafkaSecurity = KafkaSecurity()


class TimeRange(Struct, frozen=True):
    """Which folders by time are read (`job/partitions.py`)."""

    first: str
    """`2026-01-01`, or `2026-01-01T05`."""
    last: str
    """Likewise, included; `now`: without an end."""
    zone: str = "UTC"


class Source(Struct, frozen=True):
    """Where rows come from."""

    files: str = ""
    """A path, a folder or a glob, or a URL of one; relative paths were made absolute by the
    client. "" none.
    """
    kafka: KafkaSource | None = None
    weight: int = 1
    """Share of the rows where sources are mixed; rank with `priority`."""
    span: TimeRange | None = None
    """Its path is a template; None: it is none."""
    markers: tuple[str, ...] = ()
    """Files that a folder has once it is whole."""
    missing: str = "fail"
    """`wait`, `skip` or `fail`."""
    skip_after_ms: int = 0
    """Of `skip`: after the end of the folder's own time."""
    is_recursive: bool = False
    """A folder stands for the files in its sub-folders too."""
    storage: Mapping[str, str] = {}
    """Options of the storage, as in `docs/storages.md`; no secrets."""
    delay_ms: int = 0
    """Of folders by time: each comes so much later than its own time, beside those of then."""
    rescan_ms: int = 0
    """How often what was listed is looked at again for files that came since; 0 never."""
    rescan_for_ms: int = 0
    """Until so long after a folder's own time, or after all was listed first; 0 without end."""


class Split(Struct, frozen=True):
    """How large a granted range may be; 0 leaves it to the reader's own rate."""

    rows: int = 0
    byte_count: int = 0


LANES = 8
SHUFFLE_BLOCKS = 8
SHUFFLE_BLOCK_ROWS = 65_536


class Shuffle(Struct, frozen=True):
    """How rows are permuted: computed from the seed, never stored."""

    seed: int = 0
    blocks: int = SHUFFLE_BLOCKS
    """Blocks whose rows are mixed at once."""
    block_rows: int = SHUFFLE_BLOCK_ROWS


class Sample(Struct, frozen=True):
    """Which rows are taken: those whose hash is low."""

    per_million: int
    seed: int = 0


TRANSFORM_MEMORY_BYTES = 1 << 30
"""What each process of a transform may allocate, where its job file says nothing."""


class Transform(Struct, frozen=True):
    """A function of the user's through which a stream's rows go, batch by batch."""

    function: str
    """`module:function`."""
    workers: int = 1
    """Processes of each reader."""
    may_drop: bool = False
    """It may leave rows out."""
    parameters: Mapping[str, str] = {}
    memory_bytes: int = TRANSFORM_MEMORY_BYTES
    """Of each process."""


class Restore(Struct, frozen=True):
    """Positions that a stream starts at: a savepoint of another job, or a file."""

    job: str = ""
    """Name in its namespace, `namespace/name`, or uid; "" a file."""
    stream: str = ""
    """"" the one of the same name."""
    savepoint: str = ""
    """"" the newest that is sealed."""
    path: str = ""
    """Absolute: an exported savepoint, or a folder of the original's; "" a job."""


class StreamSpec(Struct, frozen=True):
    """A named, ordered set of sources."""

    name: str
    sources: tuple[Source, ...]
    format: str = ""
    """One of `job/formats.py`; "" told by each file."""
    columns: tuple[str, ...] = ()
    """Empty: all."""
    split: Split = Split()
    epochs: int = 1
    delivery: str = "atLeastOnce"
    leftover: str = "fail"
    """`fail` or `allow`: rows left when all readers completed."""
    on_bad: str = "fail"
    """`fail`, `skipRecord` or `deadLetter`."""
    bad_rows: int = 0
    """Most rows that may be left out before the stream fails; with `deadLetter` -1 is no bound."""
    window_ms: int = 10_000
    order: str = "any"
    """`any`, `unit` or `strict`."""
    shuffle: Shuffle | None = None
    """None: as listed."""
    mixing: str = "inOrder"
    """`inOrder`, `roundRobin`, `weighted` or `priority`."""
    lanes: int = LANES
    """Of order `strict`."""
    sample: Sample | None = None
    """None: all rows."""
    tail: str = "uneven"
    """`uneven`, `drop` or `pad`."""
    out_of_range: str = "fail"
    """`fail` or `earliest`: offsets that are gone before they were read are counted as lost."""
    decoding: Decoding = Decoding()
    bad_ppm: int = -1
    """Most positions that may be left out, in millionths of all; -1 no bound of its own."""
    savepoint_every_ms: int = 0
    """0: none by the clock."""
    savepoints_keep: int = 5
    """Of those that nobody named, the newest."""
    restore: Restore | None = None
    on_changed: str = "fail"
    """`fail` or `anew`: what becomes of a file that was changed since positions in it were kept."""
    staging: str = ""
    """Absolute folder in which positions stay from one job to the next; "" none."""
    transform: Transform | None = None
    """None: rows are given as they are."""


class Checkpoints(Struct, frozen=True):
    """Where trainers keep their checkpoints, as `primus.checkpoint` is told."""

    path: str = ""
    """Absolute; "" below the replica's own directory."""
    keep: int = 3
    """Whole ones, the newest."""


class JobSpec(Struct, frozen=True):
    """A job file with every default filled in."""

    name: str
    roles: Mapping[str, RoleSpec]
    namespace: str = "default"
    labels: Mapping[str, str] = {}
    queue: str = "default"
    priority: int = 50
    launcher: str = "local"
    framework: str = "none"
    policy: str = "gang"
    gang_roles: tuple[str, ...] = ()
    """The roles that start together; empty: all."""
    gate: str = "ready"
    """Under `ordered`: how far a role comes before the next starts; `started`, `ready` or
    `completed`."""
    step: int = 0
    """Under `ordered`: at most so many of a role are on their way there at once; 0 all."""
    place_timeout_ms: int = 600_000
    ready_timeout_ms: int = 300_000
    replace_after_ms: int = 300_000
    """-1 never."""
    files: tuple[ShippedSpec, ...] = ()
    data: Mapping[str, StreamSpec] = {}
    budgets: Budgets = Budgets()
    deadline_ms: int = 0
    """0 none."""
    failure: tuple[FailureRule, ...] = ()
    """The first that holds decides."""
    hang: Hang = Hang()
    reruns: int = 0
    """How often all roles begin anew, with new budgets, after one was used up."""
    original: bool = False
    """Converted from an original Primus file: its trainers also get that system's variables."""
    deadline_warn_ms: int = 0
    """How long before the deadline trainers are warned; 0 they are not."""
    warn_signal: str = ""
    """Name of a signal that goes with every warning; "" none."""
    max_replica_ms: int = 0
    """Milliseconds of all trainers together; 0 no limit."""
    checkpoint: Checkpoints = Checkpoints()
    preemptible: bool = True
    """May be stopped for a job of higher priority, where its queue allows it."""
    after: tuple[str, ...] = ()
    """Jobs that must have Succeeded before: a name of its namespace, `namespace/name`, or a uid."""


def stream_of(role: str, reading: Reading) -> str:
    """Return the name of the stream machine that a role's reading leads to.

    A pass of its own is a machine of its own: `clicks@evaluator` beside `clicks`.
    """
    return f"{reading.stream}@{role}" if reading.own_pass else reading.stream


def stages_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the folders in which streams of a job find and leave their positions."""
    return tuple(f"{one.staging}/{name}" for name, one in spec.data.items() if one.staging)


def streams_of(spec: JobSpec) -> Mapping[str, tuple[str, ...]]:
    """Return the stream machines of a job with the roles that read each; unread streams too."""
    readers: dict[str, list[str]] = {name: [] for name in spec.data}
    for role in spec.roles.values():
        for reading in role.data:
            readers.setdefault(stream_of(role.name, reading), []).append(role.name)
    own = {name.split("@")[0] for name in readers if "@" in name}
    return {
        name: tuple(roles)
        for name, roles in readers.items()
        if roles or "@" in name or name not in own
    }


def has_files(spec: StreamSpec) -> bool:
    """Return whether a stream has a source that is listed."""
    return any(source.kafka is None for source in spec.sources)


def follows_topics(spec: StreamSpec) -> bool:
    """Return whether a stream has a source that is followed."""
    return any(source.kafka is not None for source in spec.sources)


def is_endless(spec: StreamSpec) -> bool:
    """Return whether a stream never ends by itself; it takes no part in the verdict."""
    return not all(map(has_end, spec.sources))


def has_end(source: Source) -> bool:
    """Return whether nothing comes of a source any more once it was read."""
    if source.kafka is not None:
        return source.kafka.until.kind != "never"
    is_by_now = source.span is not None and source.span.last == "now"
    return not is_by_now and (not source.rescan_ms or source.rescan_for_ms > 0)


def budgets_of(spec: JobSpec, role: str) -> Budgets:
    """Return the budgets in force for a role: its own, else the job's."""
    return spec.roles[role].budgets or spec.budgets


def gang_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the roles whose replicas start together."""
    return spec.gang_roles or tuple(spec.roles)


def waits_of(spec: JobSpec, role: str) -> Mapping[str, str]:
    """Return the roles that a role waits for, and how far each has to come.

    What its `dependsOn` names; under `ordered` without one, the role before it in the file that has
    none either.
    """
    own = spec.roles[role].depends_on
    if own or spec.policy != "ordered":
        return own
    before = ""
    for name, other in spec.roles.items():
        if name == role:
            break
        if not other.depends_on:
            before = name
    return {before: spec.gate} if before else {}
