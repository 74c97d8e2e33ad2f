"""drill: a fault on purpose, to see whether a trainer resumes."""

import time
from collections.abc import Mapping

import click

from primusd.ctl.call import Call, Verb, duration_s, pass_call, shared_options
from primusd.ctl.client import Client, Json, job_path
from primusd.ctl.documents import count, mapping, text
from primusd.ctl.drill_report import (
    JOB_ENDED,
    NOT_RECOVERED,
    STARTED_OVER,
    DrillWatch,
)
from primusd.ctl.failures import FAILED, OK, TIMED_OUT, USAGE, CtlError, verdict_exit_code
from primusd.ctl.output import Printer, grouped, printable, short_duration
from primusd.ctl.waiting import FINAL_PHASES, detached, follow_job

_FORMS = ("table", "json", "yaml")
LOOK_S = 0.2
LOOKED_AT_MAX = 20
"""Of a drill that meets more replicas so many are followed."""
ANY = "any"
PAUSE_MS_MAX = 3_600_000
"""As the daemon has it."""
_SAYS = {
    "Resumed": "the trainer resumed from its checkpoint",
    "Recovered": "the job runs on",
    "StartedOver": "the trainer did not resume: it began before its checkpoint",
    "NotRecovered": "the job did not recover in time",
    "JobEnded": "the job ended",
}


@click.command("drill", cls=Verb)
@click.argument("name")
@click.option("--kill", multiple=True, metavar="ROLE:INDEX", help="SIGKILL to its trainer.")
@click.option("--preempt", is_flag=True, help="Stop the job as a preemption does, and requeue it.")
@click.option(
    "--pause", is_flag=False, flag_value=ANY, metavar="[ROLE:INDEX]", help="Stop its trainer."
)
@click.option(
    "--lose-node", is_flag=False, flag_value=ANY, metavar="[NODE]", help="End all of it there."
)
@click.option("--after", default="", metavar="30s", help="So long after now.")
@click.option("--for", "for_", default="10s", metavar="10s", help="Of --pause.", show_default=True)
@click.option("--timeout", default="10m", metavar="10m", help="To recover.", show_default=True)
@click.option("--yes", is_flag=True, help="Of --lose-node: it is meant.")
@shared_options
@pass_call
def drill(
    call: Call,
    name: str,
    *,
    kill: tuple[str, ...],
    pause: str | None,
    lose_node: str | None,
    after: str,
    for_: str,
    timeout: str,
    preempt: bool,
    yes: bool,
) -> int:
    """Bring a fault about, wait for the recovery, and tell what it cost.

    Exit codes: 0 recovered, 1 the trainer did not resume from its checkpoint, 6 not recovered in
    time; 10, 11, 12 as for wait where the job ended.
    """
    printer = call.printer_of(_FORMS)
    body = _body(kill, pause, lose_node, for_, preempt=preempt, yes=yes)
    wait_s, recover_s = duration_s(after or "0", "--after"), duration_s(timeout, "--timeout")
    namespace, job_name = call.job(name)
    job = call.client.get(job_path(namespace, job_name))
    uid = text(job, "uid")
    with detached(f"primusctl describe {name}", job=name):
        _until_running(call.client, namespace, uid, wait_s, recover_s)
        path = job_path(namespace, f"{uid}:drill")
        begun = {**call.client.call("POST", path, body=body), "pauseMs": body["pauseMs"]}
        if printer.form == "table" and not call.is_quiet:
            printer.line(f"drilled: {_targets(begun)}; waiting for the recovery")
        watch = _watched(call.client, namespace, uid, begun, recover_s)
    report = watch.report()
    if printer.form in ("json", "yaml"):
        printer.document(report)
    else:
        _show(printer, report, watch.units)
    return _exit_code(call.client, namespace, uid, text(report, "verdict"))


def _body(
    kill: tuple[str, ...],
    pause: str | None,
    lose_node: str | None,
    for_: str,
    *,
    preempt: bool,
    yes: bool,
) -> Json:
    chosen = [bool(kill), preempt, pause is not None, lose_node is not None]
    if sum(chosen) != 1:
        raise CtlError(
            "say one of --kill, --preempt, --pause, --lose-node",
            hint="primusctl drill NAME --kill worker:0",
            exit_code=USAGE,
        )
    pause_ms = int(duration_s(for_, "--for") * 1000)
    body: Json = {"pauseMs": pause_ms}
    if not 1 <= pause_ms <= PAUSE_MS_MAX:
        raise CtlError(f"--for is {for_}, may be 1ms to 1h", hint="--for 10s", exit_code=USAGE)
    if kill:
        return {**body, "fault": "kill", "replicas": [_replica(one) for one in kill]}
    if preempt:
        return {**body, "fault": "preempt"}
    if pause is not None:
        return {**body, "fault": "pause", "replicas": [] if pause == ANY else [_replica(pause)]}
    if not yes:
        raise CtlError(
            "--lose-node ends all of the job on a node, and counts as a fault of that node",
            hint="--yes if it is meant",
            exit_code=USAGE,
        )
    return {**body, "fault": "loseNode", "node": "" if lose_node == ANY else lose_node}


def _replica(word: str) -> str:
    """Return the name of what is called `worker:1` or `worker-1`."""
    role, _, index = word.rpartition(":" if ":" in word else "-")
    if not role or not (index.isascii() and index.isdecimal()):
        raise CtlError(f"{word!r} is no replica", hint="worker:1", exit_code=USAGE)
    return f"{role}-{index}"


def _until_running(
    client: Client, namespace: str, uid: str, wait_s: float, within_s: float
) -> None:
    """Wait as long as was asked, and until the job runs; one that cannot is refused later."""
    time.sleep(wait_s)

    def until(job: Json) -> bool:
        phase = text(mapping(job, "status"), "phase")
        return phase in {"Running", "Draining", "Suspended"} or phase in FINAL_PHASES

    deadline_s = time.monotonic() + within_s
    for _ in follow_job(client, namespace, uid, until=until, deadline_s=deadline_s):
        continue


def _watched(client: Client, namespace: str, uid: str, begun: Json, within_s: float) -> DrillWatch:
    targets = begun.get("targets")
    followed = targets[:LOOKED_AT_MAX] if isinstance(targets, list) else []
    watch = DrillWatch({**begun, "targets": followed})
    end_s = time.monotonic() + within_s
    while not watch.is_over and time.monotonic() < end_s:
        job = client.get(job_path(namespace, uid))
        replicas = [
            client.get(job_path(namespace, uid, "replicas", name)) for name in watch.replicas
        ]
        watch.look(job, replicas)
        if not watch.is_over:
            time.sleep(LOOK_S)
    return watch


def _targets(drill: Json) -> str:
    targets = drill.get("targets")
    names = [text(one, "replica") for one in targets] if isinstance(targets, list) else []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return printable(f"{text(drill, 'fault')} {', '.join(names[:3])}{more}".strip())


def _show(printer: Printer, report: Json, units: Mapping[str, str]) -> None:
    verdict = text(report, "verdict")
    out_ms, lost_ms = count(report, "outMs"), count(report, "lostMs")
    repeated = mapping(report, "repeated")
    steps = {
        key: text(report, key)
        for key in ("checkpointStep", "stepBefore", "firstStep", "stepsAgain")
    }
    lines = [
        ("verdict", f"{verdict}: {_SAYS[verdict]}"),
        ("out of work", short_duration(out_ms / 1000) if out_ms is not None else ""),
        ("time lost", short_duration(lost_ms / 1000) if lost_ms is not None else ""),
        ("restarted", "yes" if report.get("restarted") is True else "no"),
        ("came again", ", ".join(_again(s, count(repeated, s), units[s]) for s in repeated)),
        ("checkpoint", f"step {steps['checkpointStep']}" if steps["checkpointStep"] else "none"),
        ("step before", steps["stepBefore"]),
        ("first step", steps["firstStep"]),
        ("steps again", steps["stepsAgain"]),
        ("event", text(report, "event")),
    ]
    for label, value in lines:
        if value:
            printer.line(f"{label + ':':<13}{printable(value)}")


def _again(stream: str, repeated: int | None, unit: str) -> str:
    return f"at most {grouped(repeated)} {unit} of {stream}" if repeated else f"none of {stream}"


def _exit_code(client: Client, namespace: str, uid: str, verdict: str) -> int:
    match verdict:
        case _ if verdict == STARTED_OVER:
            return FAILED
        case _ if verdict == NOT_RECOVERED:
            return TIMED_OUT
        case _ if verdict == JOB_ENDED:
            return verdict_exit_code(mapping(client.get(job_path(namespace, uid)), "status"))
        case _:
            return OK


COMMANDS = {"drill": drill}
