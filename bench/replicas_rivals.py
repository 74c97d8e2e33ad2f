"""The rivals' side of `bench/replicas.py`: runs in their own environment, prints seconds.

    python replicas_rivals.py ray|submitit COUNT ROUNDS STAND_S

Ray's own start (`ray.init`) is left out, as the daemon's is; it stands for so many seconds before
each round, in which it may start workers ahead.
"""

import os
import sys
import tempfile
import time


def main(name: str, count: int, rounds: int, stand_s: float) -> None:
    """Print the seconds of the best round."""
    if name == "ray":
        print(min(ray_rounds(count, rounds, stand_s)))
    else:
        print(min(submitit_rounds(count, rounds)))


def ray_rounds(count: int, rounds: int, stand_s: float) -> list[float]:
    """Return the seconds until that many actors, a process each, have answered once."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray  # noqa: PLC0415  only one of the two is measured

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)

    @ray.remote(num_cpus=0)
    class Replica:
        def pid(self) -> int:
            return os.getpid()

    took = []
    for _ in range(rounds):
        time.sleep(stand_s)
        began = time.monotonic()
        replicas = [Replica.remote() for _ in range(count)]
        ray.get([one.pid.remote() for one in replicas])
        took.append(time.monotonic() - began)
        for one in replicas:
            ray.kill(one)
    ray.shutdown()
    return took


def submitit_rounds(count: int, rounds: int) -> list[float]:
    """Return the seconds until that many local jobs have all returned."""
    import submitit  # noqa: PLC0415

    took = []
    with tempfile.TemporaryDirectory() as folder:
        executor = submitit.AutoExecutor(folder=folder, cluster="local")
        executor.update_parameters(timeout_min=5)
        for _ in range(rounds):
            began = time.monotonic()
            jobs = [executor.submit(os.getpid) for _ in range(count)]
            for one in jobs:
                one.result()
            took.append(time.monotonic() - began)
    return took


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
