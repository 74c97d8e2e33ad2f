"""The state of admission: demands, nodes, ports, and facts that outlive their jobs."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.admission.events import RoleDemand
from primusd.admission.scoring import Load
from primusd.job.phases import DemandPhase, NodePhase


class Held(Struct, frozen=True, array_like=True):
    """A slot: one replica's share of a node."""

    node: str
    first_port: int
    generation: int
    port_count: int = 0
    memory_bytes: int = 0
    """0: as its role asks."""
    asked_bytes: int = 0
    """What its replica asked for when it got the slot; 0: as its role does."""


class Demand(Struct, frozen=True, array_like=True):
    """What a job asks for, and what it holds."""

    job: str
    phase: DemandPhase
    generation: int
    queue: str
    priority: int
    since_ms: int
    """Its age in the queue."""
    roles: Mapping[str, RoleDemand]
    held: Mapping[tuple[str, int], Held] = {}
    """(role, index) to its slot."""
    is_gang: bool = True
    busy: frozenset[tuple[str, int]] = frozenset()
    """(role, index) of replicas whose attempt is not Gone, as far as the job has told."""
    leaving: Mapping[str, RoleDemand] = {}
    """Roles not asked for any more, while slots of theirs are held: what those take."""
    old_ports: Mapping[tuple[str, int], tuple[tuple[str, int], ...]] = {}
    """(role, index) to the (node, port) that its attempt still uses while its slot has others."""
    runs_for_ms: int = 0
    """At most so long after its first admission it holds nothing any more; 0 no bound."""
    ends_ms: int = 0
    """Once admitted: journal time by which it holds nothing any more; 0 no bound."""
    granted_ms: int = 0
    """When it last got all that it asks for; 0 not yet."""
    is_preemptible: bool = True
    spared: tuple[str, ...] = ()
    """Jobs that it was stopped for already: not again for these."""
    evicted_for: str = ""
    """Uid of the job that gets its room; "" it was not preempted."""
    evicted_text: str = ""
    moving: frozenset[tuple[str, int]] = frozenset()
    """(role, index) of replicas that are to get a slot elsewhere and keep theirs until then."""
    old_slots: Mapping[tuple[str, int], Held] = {}
    """(role, index) to the slot that its attempt still runs in while the replica has another."""


class Quarantined(Struct, frozen=True, array_like=True):
    """A slot whose process could not be ended: taken until it vanishes."""

    job: str
    role: str
    index: int
    attempt: int
    node: str
    cpu_milli: int
    memory_bytes: int
    gpu: int
    ports: tuple[int, ...]


class Fault(Struct, frozen=True, array_like=True):
    """An infrastructure end that counts against a node."""

    at_ms: int
    attempt: str
    cause: str
    boot_id: str


class Node(Struct, frozen=True, array_like=True):
    """A node of the local launcher."""

    name: str
    launcher: str
    phase: NodePhase
    since_ms: int
    boot_id: str
    version: str
    cpu_milli: int
    memory_bytes: int
    gpu: int
    first_port: int
    last_port: int
    labels: Mapping[str, str] = {}
    faults: tuple[Fault, ...] = ()
    excluded_until_ms: int = 0
    exclusions: int = 0
    """How often in a row: the time doubles."""
    resting_ports: Mapping[int, int] = {}
    """Port to the journal time until which it is not given out."""
    is_cordoned: bool = False
    """Remembered while Away."""
    changed_revision: int = 0
    load: Load = Load()
    """As last recorded: beyond what slots reserve."""
    draining_ms: int = 0
    """Since when what runs there moves elsewhere; 0 it does not."""
    drains_now: bool = False
    """Without waiting for a place elsewhere."""
    shunned: Mapping[str, int] = {}
    """Uid of a job that does not go there to the journal time until which."""
    excluded_text: str = ""
    """Why it is Excluded, where a person or a rule said so."""


class Tombstone(Struct, frozen=True, array_like=True):
    """A job whose record is gone; its attempts are over."""

    job: str
    until_ms: int


class KeyUse(Struct, frozen=True, array_like=True):
    """An idempotency key that was used."""

    job: str
    spec_digest: str
    at_ms: int


class QueueState(Struct, frozen=True, array_like=True):
    """A queue as it is in force."""

    name: str
    quota: Mapping[str, int] = {}
    """`cpuMilli`, `memoryBytes`, `gpu`; one that is absent is not limited."""
    preemption: str = "never"
    """`never` or `lowerPriority`."""
    is_open: bool = True
    """Takes new jobs; what it has goes on either way."""
    is_set: bool = False
    """By a person: the file's values do not count any more."""
    changed_revision: int = 0


class Admission(Struct, frozen=True, array_like=True):
    """The admission machine."""

    demands: Mapping[str, Demand] = {}
    nodes: Mapping[str, Node] = {}
    quarantined: tuple[Quarantined, ...] = ()
    names: Mapping[tuple[str, str], str] = {}
    """(namespace, name) of live jobs to their uid."""
    keys: Mapping[tuple[str, str], KeyUse] = {}
    """(namespace, idempotency key) to its use; kept for 24 h."""
    tombstones: Mapping[str, Tombstone] = {}
    terms: tuple[tuple[int, int], ...] = ()
    """(term, its first revision), oldest first."""
    wedged: Mapping[str, str] = {}
    """Machine to what is known of the bug."""
    changed_revision: int = 0
    queues: Mapping[str, QueueState] = {}
    """By name; a queue that is not named here has no limit."""
    after: Mapping[str, tuple[str, ...]] = {}
    """Uid of a job to those of live jobs that must have Succeeded, or for some of them just be
    over (`over_first`), before it may start."""
    stages: Mapping[str, tuple[str, ...]] = {}
    """Uid of a live job to the folders in which its streams find and leave their positions."""
    over_first: Mapping[str, tuple[str, ...]] = {}
    """Uid of a job to those whose positions it goes on from: any end of theirs will do."""
