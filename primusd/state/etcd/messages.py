"""The message classes of etcd's protocol, from the package etcd3 and under current protobuf.

`import etcd3` fails with protobuf 4 and newer: its generated modules build descriptors in a way
that is not allowed any more. The same files carry the serialized descriptors, which are read here
without running the files, and loaded into a pool of their own. Source: etcd v3.4, `rpc.proto`.
"""

import ast
import importlib.util
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf import descriptor_pool, message_factory

from primusd.errors import ConfigError

_FILES = ("kv_pb2", "auth_pb2", "rpc_pb2")
"""In the order in which they name each other."""


@cache
def messages() -> MappingProxyType[str, Any]:
    """Return the classes by name; `Any`, for protobuf makes them while the program runs.

    Raises:
        ConfigError: The package is missing, or laid out in another way.
    """
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the etcd store needs the package etcd3, which is not installed")
    folder = Path(next(iter(spec.submodule_search_locations))) / "etcdrpc"
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Any] = {}
    for name in _FILES:
        pool.AddSerializedFile(_descriptor(folder / f"{name}.py"))
        file = pool.FindFileByName(name.replace("_pb2", ".proto"))
        for message, descriptor in file.message_types_by_name.items():
            found[message] = message_factory.GetMessageClass(descriptor)
    return MappingProxyType(found)


@cache
def methods(service: str) -> MappingProxyType[str, tuple[str, Any, Any]]:
    """Return path, request class and answer class of each method of a service, `KV` for one."""
    known = messages()
    pool = known["RangeRequest"].DESCRIPTOR.file.pool
    found = pool.FindServiceByName(f"etcdserverpb.{service}")
    return MappingProxyType(
        {
            one.name: (
                f"/etcdserverpb.{service}/{one.name}",
                known[one.input_type.name],
                known[one.output_type.name],
            )
            for one in found.methods
        }
    )


def _descriptor(path: Path) -> bytes:
    """Return the `serialized_pb=` literal of a generated module."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the package etcd3 has no {path.name}: {error.strerror}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            literal = ast.literal_eval(value)
            return literal if isinstance(literal, bytes) else str(literal).encode("latin1")
    raise ConfigError(f"the package etcd3 has no descriptor in {path.name}; it needs 0.12.0")
