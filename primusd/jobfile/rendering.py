"""A spec in the spelling of a job file; parsing it again gives the same spec."""

from collections.abc import Mapping

from primusd.job.spec import (
    Budgets,
    JobSpec,
    Placement,
    Reading,
    Ready,
    Resources,
    RoleSpec,
    ShippedSpec,
    Split,
    StreamSpec,
    Success,
    follows_topics,
)
from primusd.jobfile.decoding import render_decoding
from primusd.jobfile.failures import render_failures
from primusd.jobfile.limits import render_limits
from primusd.jobfile.ordering import render_order
from primusd.jobfile.placements import rendered as rendered_placement
from primusd.jobfile.promises import render_promises
from primusd.jobfile.queueing import render_queueing
from primusd.jobfile.topics import render_source
from primusd.jobfile.transforms import render_transform
from primusd.jobfile.yamlwriting import write_yaml
from primusd.units import format_bytes, format_duration

API_VERSION = "primus/v1"


def render(spec: JobSpec) -> dict[str, object]:
    """Return the full effective spec as a job file's values: durations `10m`, sizes `16Gi`."""
    rendered: dict[str, object] = {
        "apiVersion": API_VERSION,
        "name": spec.name,
        "namespace": spec.namespace,
        "labels": dict(spec.labels),
        **render_queueing(spec),
        "launcher": spec.launcher,
        "framework": spec.framework,
        "schedule": _schedule(spec),
        "files": [_shipped(file) for file in spec.files],
        "roles": {name: _role(role) for name, role in spec.roles.items()},
        "data": {name: _stream(stream) for name, stream in spec.data.items()},
        "budgets": _budgets(spec.budgets),
    }
    rendered |= render_limits(spec)
    rendered |= render_failures(spec)
    if spec.original:
        rendered["original"] = True
    return {key: value for key, value in rendered.items() if value not in ({}, [])}


def to_yaml(spec: JobSpec) -> str:
    """Return the full effective spec as a job file in YAML."""
    return write_yaml(render(spec))


def _schedule(spec: JobSpec) -> dict[str, object]:
    replace_after = "never" if spec.replace_after_ms < 0 else format_duration(spec.replace_after_ms)
    return {
        "policy": spec.policy,
        **({"roles": list(spec.gang_roles)} if spec.gang_roles else {}),
        **({"gate": spec.gate} if spec.policy == "ordered" else {}),
        **({"step": spec.step} if spec.step else {}),
        "placeTimeout": format_duration(spec.place_timeout_ms),
        "readyTimeout": format_duration(spec.ready_timeout_ms),
        "replaceAfter": replace_after,
    }


def _shipped(file: ShippedSpec) -> object:
    if file == ShippedSpec(file.path):
        return file.path
    if file == ShippedSpec(file.path, unpack=True):
        return f"{file.path}/"
    if file == ShippedSpec(file.path, url=file.url):
        return file.url
    return {
        "path": file.url or file.path,
        **({"digest": file.digest} if file.digest else {}),
        "bytes": file.byte_count,
        "mode": f"{file.mode:04o}",
        "unpack": file.unpack,
    }


def _role(role: RoleSpec) -> dict[str, object]:
    has_minimum = role.has_minimum or role.minimum != role.replicas
    rendered: dict[str, object] = {
        "replicas": {"min": role.minimum, "max": role.replicas} if has_minimum else role.replicas,
        "command": role.command if isinstance(role.command, str) else list(role.command),
        "resources": _resources(role.resources),
    }
    if role.env:
        rendered["env"] = dict(role.env)
    if role.workdir:
        rendered["workdir"] = role.workdir
    rendered["ports"] = list(role.ports)
    if role.ready is not None:
        rendered["ready"] = _ready(role.ready)
    if role.data:
        rendered["data"] = _readings(role.data)
    rendered["feed"] = role.feed
    if role.framing != "lines":
        rendered["framing"] = role.framing
    rendered["success"] = _success(role.success)
    if role.drain_ms:
        rendered["drain"] = format_duration(role.drain_ms)
    if role.depends_on:
        rendered["dependsOn"] = dict(role.depends_on)
    rendered["restart"] = {
        "unit": role.restart.unit,
        "delay": format_duration(role.restart.delay_ms),
        "delayMax": format_duration(role.restart.delay_max_ms),
        **({"keepPorts": True} if role.restart.keep_ports else {}),
    }
    if role.budgets is not None:
        rendered["budgets"] = _budgets(role.budgets)
    rendered["stop"] = {"signal": role.stop.signal, "grace": format_duration(role.stop.grace_ms)}
    if role.placement != Placement():
        rendered["placement"] = rendered_placement(role.placement)
    return rendered


def _resources(resources: Resources) -> dict[str, object]:
    cores, rest = divmod(resources.cpu_milli, 1000)
    return {
        "cpu": resources.cpu_milli / 1000 if rest else cores,
        **({"memory": format_bytes(resources.memory_bytes)} if resources.memory_bytes else {}),
        "gpu": resources.gpu,
    }


def _ready(ready: Ready) -> object:
    return "sdk" if ready.kind == "sdk" else {ready.kind: ready.value}


def _readings(readings: tuple[Reading, ...]) -> object:
    shown: list[object] = [
        {reading.stream: "all"} if reading.own_pass else reading.stream for reading in readings
    ]
    return shown[0] if len(shown) == 1 else shown


def _success(success: Success) -> object:
    return {"percent": success.percent} if success.kind == "percent" else success.kind


def _budgets(budgets: Budgets) -> Mapping[str, object]:
    return {
        "application": budgets.application,
        "infrastructure": budgets.infrastructure,
        "within": format_duration(budgets.within_ms),
        **({"replica": budgets.replica} if budgets.replica >= 0 else {}),
    }


def _stream(stream: StreamSpec) -> dict[str, object]:
    return {
        "sources": [
            render_source(source) | ({"weight": source.weight} if source.weight != 1 else {})
            for source in stream.sources
        ],
        **render_decoding(stream),
        **render_transform(stream),
        **_split(stream.split),
        "epochs": stream.epochs,
        "delivery": stream.delivery,
        **render_order(stream),
        **render_promises(stream),
        "window": format_duration(stream.window_ms),
        **({"outOfRange": stream.out_of_range} if follows_topics(stream) else {}),
    }


def _split(split: Split) -> dict[str, object]:
    if split.rows:
        return {"split": {"rows": split.rows}}
    return {"split": {"bytes": format_bytes(split.byte_count)}} if split.byte_count else {}
