"""The `roles` part of a job file."""

import re
from collections.abc import Mapping

from primusd.job.spec import (
    REPLICAS_MAX,
    Budgets,
    Reading,
    Ready,
    Resources,
    Restart,
    RoleSpec,
    Stop,
    Success,
)
from primusd.jobfile.document import Path, show_value
from primusd.jobfile.names import PORT_NAME_MAX, check_label
from primusd.jobfile.placements import read_placement
from primusd.jobfile.schedules import read_depends_on
from primusd.jobfile.section import (
    Findings,
    Section,
    check_text,
    is_list,
    is_mapping,
    nearest,
    quote_hint,
)

ROLE_FIELDS = (
    "replicas",
    "command",
    "resources",
    "env",
    "secrets",
    "workdir",
    "image",
    "ports",
    "ready",
    "data",
    "feed",
    "framing",
    "success",
    "drain",
    "dependsOn",
    "restart",
    "budgets",
    "stop",
    "placement",
)
# What people look for at the role and finds its place one level deeper.
ROLE_DEEPER = (
    "resources.cpu",
    "resources.memory",
    "resources.gpu",
    "restart.unit",
    "restart.delay",
    "restart.keepPorts",
    "stop.signal",
    "stop.grace",
)
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL")
RESTART_UNITS = ("replica", "role", "job")
FEEDS = ("sdk", "stdin", "fifo", "http")
GATEWAY = 'exec "$PRIMUS_PYTHON" -m primusd.gateway'
"""What a role with `feed: http` runs that says no command."""
FRAMINGS = ("lines", "raw", "lines0", "len32", "arrow-stream")
PORTS_MAX = 64
CPU_MAX = 100_000
GPU_MAX = 1_024
# The kernel takes no single text of 128 KiB or more; longer variables go through a file.
COMMAND_TEXT_BYTES_MAX = (128 << 10) - 1
ENV_BYTES_MAX = 1 << 20
ENV_RESERVED = "PRIMUS_"
GRACE_MS_MAX = 86_400_000
_ENV_ALLOWED = "a name without = that is not empty"


def read_role(findings: Findings, name: str, value: object) -> RoleSpec:
    """Return a role with its defaults; what is wrong goes to the findings."""
    path: Path = ("roles", name)
    check_label(findings, path, name, of_key=True)
    section = Section(findings, path, value, ROLE_FIELDS, deeper=ROLE_DEEPER)
    replicas, minimum, has_minimum = _replicas(section)
    ports = _ports(section)
    success = _success(section)
    return RoleSpec(
        name=name,
        replicas=replicas,
        minimum=minimum,
        command=_command(section),
        resources=_resources(section),
        env=_env(section),
        workdir=_workdir(section),
        ports=ports,
        ready=_ready(section, ports),
        data=_readings(section),
        feed=section.choice("feed", FEEDS, "sdk"),
        framing=section.choice("framing", FRAMINGS, "lines"),
        success=success,
        drain_ms=section.duration_ms("drain", 0),
        restart=_restart(section),
        budgets=read_budgets(section) if section.has("budgets") else None,
        stop=_stop(section),
        placement=read_placement(section),
        depends_on=read_depends_on(section),
        has_minimum=has_minimum,
    )


def read_budgets(section: Section) -> Budgets:
    """Return the budgets of a role or of the job."""
    if not section.has("budgets"):
        return Budgets()
    fields = ("application", "infrastructure", "within", "replica")
    budgets = Section(section.findings, section.at("budgets"), section.raw("budgets"), fields)
    default = Budgets()
    return Budgets(
        budgets.count("application", default.application, high=1_000_000),
        budgets.count("infrastructure", default.infrastructure, high=1_000_000),
        budgets.duration_ms("within", default.within_ms, zero=False),
        budgets.count("replica", default.replica, high=1_000_000),
    )


def _replicas(section: Section) -> tuple[int, int, bool]:
    """Return how many replicas a role has, how many at the least, and whether the file says so."""
    value = section.raw("replicas")
    if not is_mapping(value):
        count = section.count("replicas", 1, low=1, high=REPLICAS_MAX)
        return count, count, False
    bounds = Section(section.findings, section.at("replicas"), value, ("min", "max"))
    for key in ("min", "max"):
        if not bounds.has(key):
            section.wrong("replicas", "a number, or both min and max")
            return 1, 1, False
    low = bounds.count("min", 1, low=1, high=REPLICAS_MAX)
    high = bounds.count("max", low, low=1, high=REPLICAS_MAX)
    if low > high:
        bounds.wrong("min", f"at most max, which is {high}")
    return high, min(low, high), True


def _command(section: Section) -> str | tuple[str, ...]:
    """Return a shell line as it is, a list as argv."""
    if not section.has("command"):
        if section.is_mapping and section.raw("feed") == "http":
            return GATEWAY
        if section.is_mapping:
            hint = "command is missing: a list is argv, a text is a shell line"
            section.findings.add(section.path, hint=hint, of_key=True)
        return ""
    value = section.raw("command")
    path = section.at("command")
    if isinstance(value, str):
        _check_argument(section.findings, path, value)
        if not value.strip():
            section.wrong("command", "a command that is not empty")
        return value
    if not is_list(value) or not value or value[0] == "":
        section.wrong("command", "a text (a shell line) or a list of texts (argv), not empty")
        return ""
    words: list[str] = []
    for index, word in enumerate(value):
        if isinstance(word, str):
            _check_argument(section.findings, (*path, index), word)
            words.append(word)
        else:
            section.findings.add(
                (*path, index),
                found=show_value(word),
                allowed="a text",
                hint=quote_hint(word),
            )
    return tuple(words)


def _check_argument(findings: Findings, path: Path, text: str) -> None:
    check_text(findings, path, text, may_have_variables=True)
    if len(text.encode()) > COMMAND_TEXT_BYTES_MAX:
        findings.add(
            path,
            found=f"{len(text.encode())} bytes",
            allowed="at most 128 KiB in one argument, which is what the kernel takes",
            hint="put it into a file and ship it with files",
        )


def _resources(section: Section) -> Resources:
    if not section.has("resources"):
        return Resources()
    fields = ("cpu", "memory", "gpu")
    found = Section(section.findings, section.at("resources"), section.raw("resources"), fields)
    return Resources(
        cpu_milli=_cpu_milli(found),
        memory_bytes=found.byte_count("memory", 0),
        gpu=found.count("gpu", 0, high=GPU_MAX),
    )


def _cpu_milli(section: Section) -> int:
    """Return thousandths of a core of a number of cores, as 2 or 0.5."""
    if not section.has("cpu"):
        return 0
    value = section.raw("cpu")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isinstance(value, int | float) or not 0 <= value <= CPU_MAX:
        hint = ""
        if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,9})m", value)):
            hint = f"write {int(match[1]) / 1000:g}"
        section.wrong("cpu", f"a number of cores, 0 to {CPU_MAX}, as 2 or 0.5", hint)
        return 0
    milli = round(value * 1000)
    if abs(milli - value * 1000) > 1e-6:
        section.wrong("cpu", "at most three digits after the point")
    return milli


def _env(section: Section) -> Mapping[str, str]:
    if not section.has("env"):
        return {}
    value = section.raw("env")
    if not is_mapping(value):
        section.wrong("env", "a mapping of names to texts")
        return {}
    found: dict[str, str] = {}
    for name, text in value.items():
        path = (*section.at("env"), name)
        if not name or "=" in name or "\0" in name:
            section.findings.add(path, found=show_value(name), allowed=_ENV_ALLOWED, of_key=True)
        elif name.startswith(ENV_RESERVED):
            section.findings.add(
                path,
                found=show_value(name),
                allowed=f"names that do not begin with {ENV_RESERVED}",
                hint="these are set by primusd",
                of_key=True,
            )
        elif not isinstance(text, str):
            hint = 'write ""' if text is None else quote_hint(text)
            section.findings.add(path, found=show_value(text), allowed="a text", hint=hint)
        elif check_text(section.findings, path, text, may_have_variables=True):
            found[name] = text
    _check_env_size(section, found)
    return found


def _check_env_size(section: Section, env: Mapping[str, str]) -> None:
    size = sum(len(name.encode()) + len(text.encode()) for name, text in env.items())
    if size > ENV_BYTES_MAX:
        section.findings.add(
            section.at("env"),
            found=f"{size} bytes",
            allowed="at most 1 MiB in all",
            hint="put large values into a file and ship it with files",
        )


def _workdir(section: Section) -> str:
    workdir = section.text("workdir")
    if workdir and not workdir.startswith("/"):
        section.wrong("workdir", "an absolute path")
        return ""
    return workdir


def _ports(section: Section) -> tuple[str, ...]:
    names = section.texts("ports", ("main",))
    for index, name in enumerate(names):
        check_label(section.findings, (*section.at("ports"), index), name, limit=PORT_NAME_MAX)
    if len(names) > PORTS_MAX:
        section.findings.add(
            section.at("ports"), found=f"{len(names)} ports", allowed=f"at most {PORTS_MAX}"
        )
    return names


def _ready(section: Section, ports: tuple[str, ...]) -> Ready | None:
    """Return the readiness probe; None is ready at its start, a gateway of ours once it serves."""
    if section.raw("feed") == "http" and not section.has("command") and not section.has("ready"):
        return Ready("sdk")
    value = section.raw("ready")
    if not section.has("ready") or value == "started":
        return None
    if value == "sdk":
        return Ready("sdk")
    if not is_mapping(value) or len(value) != 1:
        section.wrong("ready", ("started", "sdk", "{port: NAME}", "{file: PATH}"))
        return None
    probe = Section(section.findings, section.at("ready"), value, ("port", "file"))
    if probe.has("port"):
        port = probe.text("port")
        if port and port not in ports:
            probe.wrong("port", ports, nearest(port, ports))
        return Ready("port", port)
    path = probe.text("file")
    if path.startswith("/") or ".." in path.split("/"):
        probe.wrong("file", "a path below the working directory")
    return Ready("file", path)


def _readings(section: Section) -> tuple[Reading, ...]:
    """Return the streams that a role reads: a name, `{name: all}`, or a list of these."""
    if not section.has("data"):
        return ()
    value = section.raw("data")
    found: list[Reading] = []
    for index, one in enumerate(value if is_list(value) else [value]):
        path = (*section.at("data"), index) if is_list(value) else section.at("data")
        pairs = one.items() if is_mapping(one) else [(one, None)]
        for name, how in pairs:
            if not isinstance(name, str) or not name or how not in (None, "all"):
                section.findings.add(
                    path,
                    found=show_value(one if how is None else how),
                    allowed="the name of a stream, or {NAME: all} for a pass of its own",
                )
            elif name in {reading.stream for reading in found}:
                section.findings.add(path, found=show_value(name), hint="named twice")
            else:
                found.append(Reading(name, own_pass=how == "all"))
    return tuple(found)


def _success(section: Section) -> Success:
    value = section.raw("success")
    if not section.has("success") or value in ("all", "any", "never"):
        return Success(str(value) if value else "all")
    if not is_mapping(value):
        is_percent = isinstance(value, int) and not isinstance(value, bool)
        hint = f"write {{percent: {value}}}" if is_percent else ""
        section.wrong("success", ("all", "any", "never", "{percent: 1 to 100}"), hint)
        return Success()
    rule = Section(section.findings, section.at("success"), value, ("percent",))
    if not rule.has("percent"):
        section.wrong("success", ("all", "any", "never", "{percent: 1 to 100}"))
    return Success("percent", rule.count("percent", 100, low=1, high=100))


def _restart(section: Section) -> Restart:
    if not section.has("restart"):
        return Restart()
    default = Restart()
    fields = ("unit", "delay", "delayMax", "keepPorts")
    found = Section(section.findings, section.at("restart"), section.raw("restart"), fields)
    delay_ms = found.duration_ms("delay", default.delay_ms)
    delay_max_ms = found.duration_ms("delayMax", max(default.delay_max_ms, delay_ms))
    if delay_max_ms < delay_ms:
        found.wrong("delayMax", "at least delay")
    return Restart(
        found.choice("unit", RESTART_UNITS, default.unit),
        delay_ms,
        delay_max_ms,
        found.flag("keepPorts", default=default.keep_ports),
    )


def _stop(section: Section) -> Stop:
    if not section.has("stop"):
        return Stop()
    found = Section(section.findings, section.at("stop"), section.raw("stop"), ("signal", "grace"))
    signal = found.raw("signal")
    if isinstance(signal, str) and signal.removeprefix("SIG") in SIGNALS:
        signal = signal.removeprefix("SIG")
    elif found.has("signal"):
        found.wrong("signal", SIGNALS)
    grace_ms = found.duration_ms("grace", Stop().grace_ms)
    if grace_ms > GRACE_MS_MAX:
        found.wrong("grace", "at most 1d")
    return Stop(signal if isinstance(signal, str) else "TERM", grace_ms)
