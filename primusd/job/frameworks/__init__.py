"""The variables of each framework: what a trainer needs to find the others (docs/frameworks.md).

Each module has one function that takes the cluster once and returns what makes the variables of
one replica, so that a cluster of 10,000 is not walked 10,000 times.
"""

from collections.abc import Callable, Mapping

from primusd.job.frameworks.cluster import Cluster, Maker
from primusd.job.frameworks.horovod import horovod
from primusd.job.frameworks.jax import jax
from primusd.job.frameworks.mpi import mpi
from primusd.job.frameworks.tensorflow import tensorflow
from primusd.job.frameworks.torch import torch
from primusd.job.frameworks.xgboost import xgboost

FRAMEWORKS: Mapping[str, Callable[[Cluster], Maker]] = {
    "torch": torch,
    "tensorflow-ps": tensorflow,
    "tensorflow-multiworker": tensorflow,
    "jax": jax,
    "mpi": mpi,
    "xgboost": xgboost,
    "horovod": horovod,
}
