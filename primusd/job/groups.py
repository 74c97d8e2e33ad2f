"""Groups: trainers that share a model and read an exactlyOnce stream, or step together (`tail`).

They restart together.

What one of them took is in the model of all, so none of them goes on without the others.
"""

from primusd.job.spec import JobSpec, RoleSpec, stream_of

UNITS = ("replica", "role", "job")
"""From the smallest to the largest."""


def group_streams(spec: JobSpec, role: RoleSpec) -> tuple[str, ...]:
    """Return the streams that a role reads as one of a group."""
    return tuple(
        one.stream
        for one in role.data
        if (stream := spec.data.get(one.stream)) is not None
        and (stream.delivery == "exactlyOnce" or stream.tail != "uneven")
    )


def group_unit(spec: JobSpec, role: RoleSpec) -> str:
    """Return what has to restart with a member of a group; `replica` where it is in none.

    Whoever shares a stream with the role has its rows in the same model.
    """
    names = group_streams(spec, role)
    if not names:
        return "replica"
    own = {stream_of(role.name, one) for one in role.data if one.stream in names}
    shared = any(
        stream_of(other.name, one) in own
        for other in spec.roles.values()
        if other.name != role.name
        for one in other.data
    )
    return "job" if shared else "role"


def larger_unit(one: str, other: str) -> str:
    """Return the one of two units that has the other in it."""
    return max(one, other, key=UNITS.index)
