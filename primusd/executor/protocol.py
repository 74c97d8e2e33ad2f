"""What executors and the daemon say to each other (docs/protocol.md §3 to §5); pure values."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from primusd.datafeed.protocol import FeedOrders, FeedReport, Held, Mark
from primusd.job.ids import AttemptId

VERSION = 1
SPEAKS = (1, 1)
MESSAGE_BYTES_MAX = 1 << 20
LOST = "X-Primus-Lost"
"""Header of who dials: the heads that did not answer it, between commas."""
PAUSE_MS_MAX = 3_600_000
"""A drill stops a trainer for no longer."""


class Bootstrap(Struct, frozen=True):
    """All that a launcher has to deliver to an executor; JSON in a file of mode 0600."""

    cluster: str
    """Id of the cluster, not its name: made once with the secret."""
    attempt: AttemptId
    heads: tuple[str, ...]
    """"unix:/run/primusd/primusd.sock", "https://head1:8080"."""
    key: str
    ca: str | None = None
    """PEM."""


class ShippedFile(Struct, frozen=True, array_like=True):
    """A file laid out below the working directory."""

    path: str
    """Below the working directory."""
    digest: str
    """"sha256:…"."""
    byte_count: int
    mode: int
    unpack: bool = False
    """A packed folder."""


class Probe(Struct, frozen=True, array_like=True):
    """How it is told that a trainer is ready."""

    kind: str
    """"port" | "file" | "sdk"."""
    value: str
    every_ms: int


class FeedPlan(Struct, frozen=True, array_like=True):
    """A stream that the trainer reads, and how it reaches it."""

    stream: str
    delivery: str
    """"socket" | "stdin" | "fifo" | "shm"."""
    framing: str
    """"arrow" | "dense" | "lines" | "lines0" | "len32" | "raw"."""
    format: Mapping[str, str]
    memory_bytes: int
    promise: str = "atLeastOnce"
    """Of its delivery; with exactlyOnce the trainer says where it begins before it reads."""


class LaunchOrder(Struct, frozen=True, array_like=True):
    """What to run, complete; secrets are resolved in it, so it is never logged."""

    job_name: str
    namespace: str
    command: tuple[str, ...]
    """Argv; a shell line comes as ("/bin/sh", "-c", line)."""
    env: Mapping[str, str]
    """Complete but for what docs/protocol.md §7 adds at start; secrets resolved."""
    files: tuple[ShippedFile, ...]
    workdir: str
    """Absolute; "" = the replica's own directory."""
    ports: tuple[tuple[str, int], ...]
    """Name, number; 0 = bind what you like and report it with `holding`."""
    stop_signal: int
    grace_ms: int
    log_bytes_max: int
    """Per file."""
    log_files_max: int
    log_patterns: tuple[str, ...]
    """Of the job's `failure` rules; matches are reported by position in this tuple."""
    ready: Probe | None
    feeds: tuple[FeedPlan, ...]
    """Streams it will read; how they reach the trainer."""
    orphan_ms: int
    """Without any head for so long: stop the trainer. Default 7 days."""
    hang_ms: int = 0
    """Without progress for so long, after the first: it hangs; 0 never."""
    hang_phase_ms: int = 0
    """In place of `hang_ms` within a phase that the trainer declared; 0 never."""


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of an executor."""

    speaks: tuple[int, int]
    """Lowest and highest protocol version; this page is 1."""
    cluster: str
    attempt: AttemptId
    incarnation: str
    """16 random hex digits, made once per executor process."""
    seen_term: int
    """Term and revision of the newest Orders it ever received; 0, 0 none."""
    seen_revision: int
    host: str
    """As peers should call it."""
    ports: Mapping[str, int]
    """By name, as in Report; empty until bound (allotted ones come in the order)."""
    boot_id: str
    pid: int
    version: str
    """Of primusd."""


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    """The answer to a hello that is taken."""

    version: int
    """The one spoken from now on."""
    order: LaunchOrder | None
    """None when the hello said seen_term > 0."""


class Refused(Struct, frozen=True, array_like=True, tag="refused"):
    """The answer to a hello, or to a report, that is not taken (docs/protocol.md §3)."""

    code: str
    text: str
    heads: tuple[str, ...] = ()
    retry_ms: int = 0


def spoken(speaks: tuple[int, int]) -> int:
    """Return the highest version that we and who says hello both speak; 0 there is none."""
    highest = min(speaks[1], SPEAKS[1])
    return highest if highest >= max(speaks[0], SPEAKS[0]) else 0


class Trainer(Struct, frozen=True, array_like=True):
    """The trainer while it lives."""

    pid: int
    started_ms: int
    """Wall clock of its host."""
    ready: bool


class Exit(Struct, frozen=True, array_like=True):
    """How the trainer ended, with its evidence; also the content of `exit.json`."""

    code: int | None
    """None: by signal, or never started."""
    signal: int | None
    start_errno: int | None
    executor_error: str
    """"" or portTaken:<name> | files:<text> | disk | internal:<text>."""
    oom_kills: int
    """Rise of the counter during the attempt; -1 nobody counts here."""
    peak_rss_bytes: int
    started_ms: int
    ended_ms: int
    stop_seen: str
    """Reason of the stop it was carrying out; "" none."""
    matched: tuple[int, ...]
    """Log patterns seen."""
    last_lines: str
    """At most 4 KiB, bad bytes replaced."""
    positions: tuple[Held, ...]
    """Final, all streams."""
    marks: tuple[tuple[str, Mark], ...] = ()
    """exactlyOnce: those of each stream that no answer has covered yet."""


class Progress(Struct, frozen=True, array_like=True):
    """What the trainer says of its own progress."""

    step: int
    epoch: int
    at_ms: int
    metrics: Mapping[str, float]
    """Never enters the journal."""


class Checkpoint(Struct, frozen=True, array_like=True):
    """The newest whole checkpoint of the trainer."""

    path: str
    step: int
    savepoint: str
    """"" none."""


class Usage(Struct, frozen=True, array_like=True):
    """What the attempt, or the node, uses."""

    cpu_ms: int
    """Cumulative."""
    rss_bytes: int
    read_bytes: int
    written_bytes: int
    net_in_bytes: int
    """Of the container or cgroup where it can be told, else of the host; -1 unknown."""
    net_out_bytes: int
    gpus: tuple[tuple[str, int, int], ...]
    """Uuid, busy per mille, memory bytes."""


class Answer(Struct, frozen=True, array_like=True):
    """What an ask brought."""

    id: int
    data: bytes
    end: bool
    """Of the file, and the attempt writes no more."""
    error: str = ""
    offset: int = 0
    """Of the first byte of `data`: higher than asked for where older files are gone."""


class Report(Struct, frozen=True, array_like=True, tag="report"):
    """All that is so beside the trainer."""

    seq: int
    """From 1, per connection."""
    phase: str
    """Preparing | holding | starting | running | stopping | ended."""
    orders_revision: int
    """Of the orders it follows."""
    trainer: Trainer | None
    exit: Exit | None
    """In every report from the end on, until Orders.exit_recorded."""
    ports: tuple[tuple[str, int], ...] = ()
    """As bound; complete from `holding` on."""
    preemption_ms: int = 0
    """> 0: told that it will be taken in so many ms."""
    progress: Progress | None = None
    """At most each second; not journaled."""
    checkpoint: Checkpoint | None = None
    """Newest whole one; journaled once each (CheckpointNoted)."""
    usage: Usage | None = None
    """Each 10 s; not journaled."""
    hang: str = ""
    """Evidence, as long as the hang rule holds."""
    feeds: tuple[FeedReport, ...] = ()
    answers: tuple[Answer, ...] = ()


class Hold(Struct, frozen=True, array_like=True, tag="hold"):
    """The gate is closed: fetch files, open readers, start nothing."""


class Start(Struct, frozen=True, array_like=True, tag="start"):
    """The gate is open: run the trainer with these peers."""

    generation: int
    peers: str
    """Digest; fetched unless `inline` has it; a new one for a trainer that runs rewrites
    peers.json, nothing else.
    """
    inline: bytes = b""
    """The peers document when it is below 16 KiB."""
    has_variables: bool = False
    """StartVariables belong to it, to be fetched with the same digest."""


class StartVariables(Struct, frozen=True):
    """Variables that hang on who the peers are: known only when all of them hold. JSON, fetched."""

    env: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """By variable: what a file has to hold whose path is the variable's value."""


class Stop(Struct, frozen=True, array_like=True, tag="stop"):
    """End the trainer: signal, grace, kill."""

    reason: str
    """Closed list, docs/state-machines.md §4."""
    text: str
    grace_ms: int
    """Left, not total."""


class Near(Struct, frozen=True, array_like=True):
    """A limit that is near: a warning, no stop."""

    limit: str
    """`deadline`, `replicaHours` or `drain`."""
    left_ms: int
    signal: int = 0
    """To be sent to the trainer once; 0 none."""


class Leave(Struct, frozen=True, array_like=True, tag="leave"):
    """The end is recorded: kill what still lives, remove the working copies, end."""


class Ask(Struct, frozen=True, array_like=True):
    """A question to the executor."""

    id: int
    """Repeated until an Answer has it."""
    kind: str
    """"stacks" | "logs"; of a drill: "kill" | "pause" | "die"."""
    path: str = ""
    """`stdout` or `stderr`, `stdout.index` or `stderr.index`, `executor`; of "pause": for how many
    ms."""
    offset: int = 0
    """Of the first byte wanted, counted from the attempt's start; negative: from the end."""
    byte_count: int = 0
    """At most so many; 0 as many as an answer holds."""


class Orders(Struct, frozen=True, array_like=True, tag="orders"):
    """All that should be so beside the trainer."""

    report: int
    """Newest Report.seq that is durable and counted in."""
    revision: int
    term: int
    run: Hold | Start | Stop | Leave
    exit_recorded: bool
    beat_ms: int
    ttl_ms: int
    """Of leases, counted by the executor from when it *sent* the report."""
    heads: tuple[str, ...]
    feeds: tuple[FeedOrders, ...] = ()
    asks: tuple[Ask, ...] = ()
    near: tuple[Near, ...] = ()
    """All limits that the trainer is to be warned of."""


ExecutorMessage = Hello | Report
DaemonMessage = Welcome | Refused | Orders

encode = msgspec.msgpack.Encoder().encode
decode_executor_message = msgspec.msgpack.Decoder(ExecutorMessage).decode
decode_daemon_message = msgspec.msgpack.Decoder(DaemonMessage).decode
