"""Events of the admission machine: demands, nodes, ports, and facts that outlive their jobs."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.job.events import Place
from primusd.job.ids import Span
from primusd.job.spec import Placement


class _Event(Struct, frozen=True, array_like=True, tag=True):
    """What all events share: msgpack arrays that begin with the class name."""


class RoleDemand(Struct, frozen=True, array_like=True):
    """What a job wants for one role: these replicas, each with so much."""

    role: str
    wanted: tuple[Span, ...]
    cpu_milli: int
    memory_bytes: int
    gpu: int
    port_count: int
    """Per replica."""
    generation: int = 0
    """Ports of an older one are allotted anew; a role that runs on while another restarts keeps
    its own. 0: the demand's."""
    placement: Placement = Placement()
    memory: tuple[tuple[int, int, int], ...] = ()
    """(first index, last index, bytes) of replicas that would have more than the role's."""
    spare_count: int = 0
    """So many of them it can do without for now: an elastic role above its minimum."""


class DemandRaised(_Event, frozen=True):
    """All that a job asks for now; replaces what it asked for before."""

    job: str
    generation: int
    """Of the job: what newly allotted ports belong to."""
    queue: str
    priority: int
    roles: tuple[RoleDemand, ...]
    is_gang: bool = True
    """All that it cannot do without, or nothing: so under every policy."""
    ports_taken: tuple[tuple[str, int, int], ...] = ()
    """(role, index, port) that were found in use by a stranger."""
    busy: tuple[Span, ...] = ()
    """Replicas with an attempt that is not Gone: their slots stay taken until SlotFreed, also
    when they are not wanted any more; a slot neither wanted nor busy is free at once."""
    lacking: tuple[Span, ...] = ()
    """Replicas that know of no slot: they hear of the one they hold, if they hold one."""
    runs_for_ms: int = 0
    """At most so long after its first admission it holds nothing any more; 0 no bound."""
    ends_ms: int = 0
    """Once admitted: journal time by which it holds nothing any more; 0 no bound."""
    since_ms: int = 0
    """Its age, when it was in the queue before and was preempted; 0 from now on."""
    is_preemptible: bool = True
    """May be stopped for a job of higher priority, where its queue allows it."""
    spared: tuple[str, ...] = ()
    """Jobs that it was stopped for already: not again for these."""
    moving: tuple[Span, ...] = ()
    """Replicas whose node is being emptied: they keep their slot until they get one elsewhere."""


class DemandMoved(_Event, frozen=True):
    """A person moved the job in its queue."""

    job: str
    priority: int
    since_ms: int = 0
    """Its new age; 0 as it was."""


class DemandWithdrawn(_Event, frozen=True):
    """A job asks for nothing any more."""

    job: str
    busy: tuple[Span, ...] = ()
    """As in DemandRaised."""


class SlotFreed(_Event, frozen=True):
    """Attempts are Gone: nothing runs in these slots; a slot that is not wanted is free now."""

    job: str
    spans: tuple[Span, ...]
    is_reused: bool = False
    """The next attempt runs there already: only ports that it does not use are free."""


class SlotQuarantined(_Event, frozen=True):
    """An attempt could not be ended: its slot leaves the demand and stays taken on the node."""

    job: str
    role: str
    index: int
    attempt: int


class QuarantineLifted(_Event, frozen=True):
    """A quarantined attempt vanished after all."""

    job: str
    role: str
    index: int
    attempt: int


class NodeSeen(_Event, frozen=True):
    """A node said hello, or its capacity changed."""

    node: str
    launcher: str
    boot_id: str
    version: str
    cpu_milli: int
    memory_bytes: int
    gpu: int
    first_port: int
    last_port: int
    labels: Mapping[str, str] = {}


class NodeWentAway(_Event, frozen=True):
    """The connection of a node is gone for too long."""

    node: str


class NodeFaultCounted(_Event, frozen=True):
    """An infrastructure end happened on a node."""

    node: str
    attempt: str
    """`uid/worker-1/2`."""
    cause: str
    boot_id: str


class CordonRequested(_Event, frozen=True):
    """Nothing new is placed on the node."""

    node: str
    reason: str = ""


class UncordonRequested(_Event, frozen=True):
    """The node takes attempts again."""

    node: str


class DrainRequested(_Event, frozen=True):
    """What runs on the node moves elsewhere."""

    node: str
    is_now: bool = False
    """All at once, also what has no place elsewhere yet."""


class ForgiveRequested(_Event, frozen=True):
    """The faults of a node are forgotten."""

    node: str


class NodeExclusionRequested(_Event, frozen=True):
    """A node is left out for a while: by a person, or by a `failure` rule of a job."""

    node: str
    for_ms: int
    job: str = ""
    """Uid of the only job that is kept off it; "" it is left out for all."""
    reason: str = ""


class RemovalRequested(_Event, frozen=True):
    """A node that is away is gone for good: it is known no more."""

    node: str


class NodeLoadMeasured(_Event, frozen=True):
    """What is used on a node beyond what slots reserve there has changed by a step."""

    node: str
    cpu_milli: int
    memory_bytes: int


class CapacityChanged(_Event, frozen=True):
    """What a node has changed; a consequence inside admission is settled at once."""

    node: str


class QueueDeclared(_Event, frozen=True):
    """The configuration file has this queue, or has it otherwise than before."""

    queue: str
    quota: Mapping[str, int] = {}
    """`cpuMilli`, `memoryBytes`, `gpu`; one that is absent is not limited."""
    preemption: str = "never"


class QueueSet(_Event, frozen=True):
    """A person set up a queue: all of its settings, from now on in place of the file's."""

    queue: str
    quota: Mapping[str, int] = {}
    preemption: str = "never"
    is_open: bool = True


class QueueDropped(_Event, frozen=True):
    """The file has this queue no more, and nobody set it up by hand."""

    queue: str


# Facts without a phase.


class JobNoted(_Event, frozen=True):
    """A job was submitted: its name and idempotency key are remembered."""

    job: str
    namespace: str
    name: str
    key: str
    spec_digest: str
    after: tuple[str, ...] = ()
    """Uids of the jobs that must have Succeeded before it may start."""
    stages: tuple[str, ...] = ()
    """Folders in which its streams find and leave their positions: one job at a time has each."""


class JobEnded(_Event, frozen=True):
    """A job reached a final phase: its name is free, and jobs may have waited for it."""

    job: str
    as_phase: str = ""
    """"" in journals from before jobs could wait for another."""
    namespace: str = ""
    name: str = ""
    """Both "" in older journals: its name is looked for."""


class JobForgotten(_Event, frozen=True):
    """The record of a final job went: a tombstone stays for `keep_ms`."""

    job: str
    keep_ms: int


class TermBegan(_Event, frozen=True):
    """A leadership began: the first entry of each term."""

    cluster: str
    version: str


class MachineWedged(_Event, frozen=True):
    """A machine stopped on a bug of ours; written by the engine."""

    machine: str
    text: str


class MachineUnwedged(_Event, frozen=True):
    """The machine loads again."""

    machine: str


# From settle.


class DemandFitted(_Event, frozen=True):
    """The demand gets these places; the consequence is JobAdmitted with the same."""

    job: str
    places: tuple[Place, ...]
    generation: int


class DemandEvicted(_Event, frozen=True):
    """The demand is preempted."""

    job: str
    message: str
    by_job: str = ""
    """Uid of the one that gets the room."""


class DemandReleased(_Event, frozen=True):
    """Nothing of a withdrawn demand is held any more."""

    job: str


class NodeExcluded(_Event, frozen=True):
    """A node is left out for a while."""

    node: str
    until_ms: int


AdmissionEvent = (
    DemandRaised
    | DemandMoved
    | DemandWithdrawn
    | SlotFreed
    | SlotQuarantined
    | QuarantineLifted
    | NodeSeen
    | NodeWentAway
    | NodeFaultCounted
    | CordonRequested
    | UncordonRequested
    | DrainRequested
    | ForgiveRequested
    | NodeExclusionRequested
    | NodeLoadMeasured
    | CapacityChanged
    | QueueDeclared
    | QueueSet
    | QueueDropped
    | JobNoted
    | JobEnded
    | JobForgotten
    | TermBegan
    | MachineWedged
    | MachineUnwedged
    | DemandFitted
    | DemandEvicted
    | DemandReleased
    | NodeExcluded
    | RemovalRequested
)
