"""Scripts written by hand: what seeds seldom come to, each for the cells that it reaches."""

from tests.simulation.script import Deed, PlannedJob, Script

LONG = ("long work", "servers")
READING = ("long work", "servers", "stream")


def _job(*features: str) -> tuple[PlannedJob, ...]:
    return (PlannedJob(0, 0, features),)


def _paused(*deeds: Deed, seed: int = 1) -> Script:
    """Return a run in which people do things to a job that is suspended."""
    return Script(seed, _job(*READING), (Deed(3_000, "suspend"), *deeds, Deed(130_000, "tick")))


STORIES: tuple[Script, ...] = (
    _paused(Deed(9_000, "late words"), Deed(9_500, "tick"), Deed(20_000, "scale")),
    _paused(Deed(9_000, "scale"), Deed(9_100, "patch"), Deed(9_200, "finish")),
    _paused(Deed(9_000, "skip task"), Deed(9_500, "skip task", 1), Deed(20_000, "cancel")),
    _paused(Deed(9_000, "resume"), Deed(9_005, "suspend"), Deed(9_006, "scale"), seed=2),
    Script(
        3,
        _job("long work", "more workers", "servers"),
        (Deed(3_000, "suspend"), Deed(3_003, "scale"), Deed(3_004, "late words")),
    ),
    # The helpers drain, and a person decides otherwise.
    *(
        Script(seed, _job("drain"), (Deed(at_ms, "finish", at_ms),))
        for seed in range(4)
        for at_ms in (1_900, 3_000, 5_000, 10_000)
    ),
    # A person decides before all of it runs.
    *(
        Script(1, _job("servers"), (Deed(at_ms, "finish", at_ms),))
        for at_ms in range(970, 1_000, 4)
    ),
    # A failed replica is asked to run again while its job goes on.
    *(
        Script(
            seed,
            _job("more workers", "chief", "long work", "success", "budgets", "quick restarts"),
            tuple(
                Deed(at_ms, "restart what is over", at_ms) for at_ms in range(5_000, 80_000, 7_000)
            ),
            weather="rough",
        )
        for seed in range(6)
    ),
    # Hosts fail again and again, and are left out.
    *(
        Script(
            seed,
            _job("more workers", "long work", "quick restarts", "replace after"),
            (
                Deed(5_000, "lose host", 1),
                Deed(70_000, "lose host", 1),
                Deed(71_000, "cordon", 1),
                Deed(72_000, "tick"),
                Deed(140_000, "lose host", 1),
                Deed(150_000, "forgive", 2),
                Deed(160_000, "tick"),
            ),
            hosts=3,
        )
        for seed in range(6)
    ),
    # Somebody with more right wants all there is.
    *(
        Script(seed, _job("long work", "all GPUs"), (Deed(6_000, "rush", seed),))
        for seed in range(3)
    ),
    # A host is gone, is forgotten, and comes back all the same.
    *(
        Script(
            seed,
            (PlannedJob(0, 100_000, LONG),),
            (
                Deed(5_000, "lose host", seed),
                *(Deed(at_ms, "remove node", at_ms) for at_ms in (36_000, 45_000, 60_000)),
            ),
        )
        for seed in range(6)
    ),
    # A host that takes nothing new fails all the same.
    *(
        Script(
            seed,
            _job("long work", "more workers", "servers"),
            (Deed(3_000, "cordon"), Deed(4_000, "kill executor", seed), Deed(5_000, "echo")),
        )
        for seed in range(4)
    ),
    # What people say of a stream whose files are still being listed.
    *(
        Script(
            seed,
            _job("slow files"),
            (
                Deed(2_000, "drop savepoint"),
                Deed(2_500, "pause stream"),
                Deed(3_000, "keep savepoint"),
            ),
        )
        for seed in range(2)
    ),
    # Streams that fail while their trainers are slow to stop, or deaf.
    *(
        Script(
            seed,
            _job("bad stream", "more workers", "long work", "chief"),
            tuple(
                Deed(at_ms, name, at_ms)
                for at_ms in range(1_500, 20_000, 900)
                for name in (
                    "late words",
                    "keep savepoint",
                    "keep for checkpoint",
                    "drop savepoint",
                    "restore savepoint",
                )
            ),
            weather="rough",
        )
        for seed in range(8)
    ),
    *(Script(seed, _job("poison", "budgets", "quick restarts")) for seed in range(4)),
    # What was left out is asked for again once all else is read.
    *(
        Script(
            seed,
            _job("bad stream", "drain", "more workers"),
            tuple(Deed(at_ms, "retry task", at_ms) for at_ms in range(1_500, 12_000, 500)),
        )
        for seed in (2, 4, 6)
    ),
    # The first words of attempts come at the same time as other news of them.
    *(
        Script(
            seed,
            _job("more workers", "servers", "long work"),
            tuple(
                Deed(at_ms, name, at_ms)
                for at_ms in range(972, 1_000, 2)
                for name in (
                    "rumour: waiting",
                    "rumour: preempted",
                    *(("rumour: not launched", "kill executor") if seed % 2 else ()),
                )
            ),
        )
        for seed in range(6)
    ),
)
