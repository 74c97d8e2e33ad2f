"""What can be configured: every setting with its default and its bounds.

`reader` fills these from the file, the environment and the flags; `docs/config.md` §3 is the same
list for people. A field's name ends in its unit, the key in the file does not:
`snapshot_every_ms` is written `snapshot_every = "30s"`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from msgspec import Struct, field

from primusd.config.values import (
    AbsolutePath,
    Address,
    Choice,
    Cores,
    Duration,
    Flag,
    Gpus,
    Integer,
    Name,
    NotYet,
    PortRange,
    Quota,
    Size,
    Text,
    TextMap,
    TextTuple,
)

LOG_LEVELS = ("debug", "info", "warning", "error")
STORE_KINDS = ("embedded", "etcd")
LAUNCHERS = ("local", "kubernetes", "yarn")
SPARE_EXECUTORS_MAX = 64
INHERITED = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "JAVA_HOME", "HADOOP_CONF_DIR", "KRB5CCNAME",
)  # fmt: skip
EMPTY: Mapping[str, str] = MappingProxyType({})

_MIB = 1 << 20
_GIB = 1 << 30
_SECOND = 1_000
_MINUTE = 60_000
_DAY = 86_400_000


class Listen(Struct, frozen=True):
    """Where the API is served."""

    socket: Annotated[str, AbsolutePath()] = ""
    """Path of the unix socket; filled with `<run>/primusd.sock` when it was not given."""
    socket_group: Annotated[str, Text()] = "primus"
    tcp: Annotated[str, Address()] = "127.0.0.1:8080"
    """`host:port`; "" is no TCP listener."""
    advertise: Annotated[str, Text()] = ""
    tls_cert: Annotated[str, AbsolutePath()] = ""
    tls_key: Annotated[str, AbsolutePath()] = ""
    client_ca: Annotated[str, AbsolutePath()] = ""
    connections_max: Annotated[int, Integer(10, 1_000_000)] = 20_000
    body_bytes_max: Annotated[int, Size(64 << 10, 256 * _MIB, key="body_max")] = 4 * _MIB


class Auth(Struct, frozen=True):
    """Who may come in over TCP."""

    tokens: Annotated[str, AbsolutePath()] = ""
    """File of `name role sha256`; "" is only the token in the run directory."""
    page_reads_without_token: Annotated[bool, Flag()] = False


class Etcd(Struct, frozen=True):
    """The etcd store."""

    endpoints: Annotated[tuple[str, ...], TextTuple(count_min=1)] = ("127.0.0.1:2379",)
    user: Annotated[str, Text()] = ""
    password_file: Annotated[str, AbsolutePath()] = ""
    ca: Annotated[str, AbsolutePath()] = ""
    cert: Annotated[str, AbsolutePath()] = ""
    key: Annotated[str, AbsolutePath()] = ""
    leader_ttl_ms: Annotated[int, Duration(5 * _SECOND, 60 * _SECOND)] = 10 * _SECOND
    request_timeout_ms: Annotated[int, Duration(100, 30 * _SECOND)] = _SECOND
    compact: Annotated[bool, Flag()] = True
    quota_bytes: Annotated[int | None, Size(16 * _MIB, 1 << 40, may_be_empty=True)] = None
    """None is what the servers say."""
    quota_warn_percent: Annotated[int, Integer(1, 99)] = 70
    quota_stop_percent: Annotated[int, Integer(1, 99)] = 85


class Store(Struct, frozen=True):
    """Where the journal is kept."""

    kind: Annotated[str, Choice(STORE_KINDS)] = "embedded"
    ack_linger_ms: Annotated[int | None, Duration(0, 5 * _SECOND, may_be_empty=True)] = None
    """How long a step of data beats only may wait; never None once loaded."""
    snapshot_every_ms: Annotated[int, Duration(_SECOND, 60 * _MINUTE)] = 30 * _SECOND
    etcd: Etcd = Etcd()


class Blobs(Struct, frozen=True):
    """Shipped files and unit lists, by content."""

    url: Annotated[str, Text()] = ""
    """"" is `<state>/blobs`; else a folder that all heads reach."""
    options: Annotated[Mapping[str, str], TextMap()] = EMPTY
    """Of its storage."""
    bytes_max: Annotated[int, Size(_MIB, 1 << 50)] = 20 * _GIB
    file_bytes_max: Annotated[int, Size(_MIB, 1 << 50, key="file_max")] = 2 * _GIB


class History(Struct, frozen=True):
    """How long what is over stays known."""

    keep_ms: Annotated[int, Duration(60 * _MINUTE, 3650 * _DAY)] = 30 * _DAY
    url: Annotated[str, Text()] = ""
    """"" is `<state>/archive`; else a folder that all heads reach."""
    options: Annotated[Mapping[str, str], TextMap()] = EMPTY
    """Of its storage."""
    bytes_max: Annotated[int, Size(_MIB, 1 << 50)] = 10 * _GIB


class Logs(Struct, frozen=True):
    """The daemon's own log, and the logs of trainers."""

    level: Annotated[str, Choice(LOG_LEVELS)] = "info"
    format: Annotated[str, Choice(("", "text", "json"))] = ""
    """"" is text on a terminal, else json."""
    attempt_file_bytes: Annotated[int, Size(64 << 10, 1 << 40)] = 100 * _MIB
    attempt_files: Annotated[int, Integer(1, 1_000)] = 5
    keep_ms: Annotated[int, Duration(60 * _MINUTE, 3650 * _DAY)] = 7 * _DAY
    bytes_max: Annotated[int, Size(_MIB, 1 << 50)] = 20 * _GIB
    archive: Annotated[str, Text(), NotYet()] = ""


class Limits(Struct, frozen=True):
    """What one daemon takes on."""

    jobs_live: Annotated[int, Integer(1, 1_000_000)] = 5_000
    replicas_per_job: Annotated[int, Integer(1, 100_000)] = 20_000
    queue: Annotated[int, Integer(1, 1_000_000)] = 10_000
    api_requests_per_s: Annotated[int, Integer(1, 1_000_000)] = 200
    """Per caller."""
    replay_watch_ms: Annotated[int, Duration(_SECOND, _DAY)] = 10 * _MINUTE


class LocalLauncher(Struct, frozen=True):
    """What `primusd node` offers on its host."""

    cpu_milli: Annotated[int | None, Cores()] = None
    """None is all cores of the host."""
    memory_bytes: Annotated[int | None, Size(16 * _MIB, 1 << 50, may_be_empty=True)] = None
    """None is 90 % of the host's."""
    gpus: Annotated[str | int | tuple[str, ...], Gpus()] = "auto"
    ports: Annotated[tuple[int, int], PortRange()] = (20_000, 29_999)
    """First and last."""
    inherit: Annotated[tuple[str, ...], TextTuple()] = INHERITED
    enforce: Annotated[str, Choice(("auto", "cgroup", "none"))] = "auto"
    user: Annotated[str, Text()] = ""
    labels: Annotated[Mapping[str, str], TextMap()] = EMPTY
    spare_executors: Annotated[int | None, Integer(0, SPARE_EXECUTORS_MAX, may_be_empty=True)] = (
        None
    )
    """None is one for each GiB of `memory_bytes`, at most 16."""


class KubernetesLauncher(Struct, frozen=True):
    """How pods are made."""

    kubeconfig: Annotated[str, AbsolutePath()] = ""
    context: Annotated[str, Text()] = ""
    namespace: Annotated[str, Text()] = ""
    image: Annotated[str, Text()] = ""
    creates_per_s: Annotated[int, Integer(1, 10_000)] = 50
    gpu_resource: Annotated[str, Text()] = "nvidia.com/gpu"


class YarnLauncher(Struct, frozen=True):
    """How containers are asked for."""

    conf_dir: Annotated[str, AbsolutePath()] = ""
    user: Annotated[str, Text()] = ""
    queue: Annotated[str, Text()] = "default"
    staging: Annotated[str, Text()] = ""


class Launchers(Struct, frozen=True):
    """Where replicas can run."""

    default: Annotated[str, Choice(LAUNCHERS), NotYet(("kubernetes", "yarn"))] = "local"
    enabled: Annotated[
        tuple[str, ...], TextTuple(LAUNCHERS, count_min=1), NotYet(("kubernetes", "yarn"))
    ] = ("local",)
    local: LocalLauncher = LocalLauncher()
    kubernetes: KubernetesLauncher = KubernetesLauncher()
    yarn: YarnLauncher = YarnLauncher()


class Queue(Struct, frozen=True):
    """What the jobs of one queue may use together."""

    quota: Annotated[Mapping[str, int], Quota()] = MappingProxyType({})
    """`cpuMilli`, `memoryBytes`, `gpu`; a missing one is unlimited."""
    preemption: Annotated[str, Choice(("never", "lowerPriority"))] = "never"


class Secrets(Struct, frozen=True):
    """Where the values are that a job names in `secrets`."""

    dir: Annotated[str, AbsolutePath(), NotYet()] = ""
    """"" is /etc/primus/secrets, or secrets beside a plain user's configuration file."""


class Config(Struct, frozen=True):
    """The whole configuration; `Config()` is what a daemon without a file has."""

    cluster: Annotated[str, Name()] = "default"
    member: Annotated[str, Text()] = ""
    """Name of this head; filled with the host name when it was not given."""
    listen: Listen = Listen()
    auth: Auth = Auth()
    store: Store = Store()
    blobs: Blobs = Blobs()
    history: History = History()
    logs: Logs = Logs()
    limits: Limits = Limits()
    launchers: Launchers = Launchers()
    queues: Mapping[str, Queue] = field(
        default_factory=lambda: MappingProxyType({"default": Queue()})
    )
    secrets: Secrets = Secrets()


class Directories(Struct, frozen=True):
    """Where one daemon keeps its things; none of them is made by reading the configuration."""

    config: Path
    state: Path
    run: Path


class Loaded(Struct, frozen=True):
    """A configuration in force, and where each of its values came from."""

    config: Config
    origins: Mapping[str, str]
    """By path in the file: `default`, `FILE:LINE`, `environment NAME` or `flag --NAME`."""
    directories: Directories
    file: Path | None
    """None when no file was found, which is fine."""

    def is_default(self, path: str) -> bool:
        """Return whether nobody asked for this value by name."""
        return self.origins[path] == "default"
