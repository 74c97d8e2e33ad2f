"""The queues of the configuration file, made known to admission.

What a person set up stands in the journal and wins; a queue that nobody set up is as the file has
it, from each start and each reload on.
"""

from primusd.admission.events import QueueDeclared, QueueDropped
from primusd.admission.queues import DEFAULT
from primusd.config import Config
from primusd.core import World


def declared_as(config: Config, name: str) -> QueueDeclared | None:
    """Return a queue as the file has it; None: it has none of the name."""
    queue = config.queues.get(name)
    return None if queue is None else QueueDeclared(name, dict(queue.quota), queue.preemption)


def declarations(config: Config, world: World) -> tuple[QueueDeclared | QueueDropped, ...]:
    """Return what admission has to hear so that its queues are as the file has them.

    A queue that the file has no more stays for as long as jobs live in it.
    """
    known = world.admission.queues
    found: list[QueueDeclared | QueueDropped] = []
    for name in config.queues:
        declared = declared_as(config, name)
        old = known.get(name)
        if old is not None and old.is_set:
            continue
        now = QueueDeclared(name) if old is None else QueueDeclared(name, old.quota, old.preemption)
        is_known = old is not None or name == DEFAULT
        if declared is not None and not (is_known and declared == now):
            found.append(declared)
    used = {job.spec.queue for job in world.jobs.values() if not job.is_final}
    found += [
        QueueDropped(name)
        for name, queue in known.items()
        if name not in config.queues and not queue.is_set and name not in used
    ]
    return tuple(found)
