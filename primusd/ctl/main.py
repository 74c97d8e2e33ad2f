"""The entry point: which verb was asked for; its module is loaded then, and no other."""

import gc
import os
import sys
from collections.abc import Mapping

import click

from primusd import __version__
from primusd.ctl.call import Call, shared_options
from primusd.ctl.failures import INTERRUPTED, USAGE, CtlError, DetachedError, not_yet

# Verb: module, and what it does.
VERBS = {
    "submit": ("submitting", "Submit a job file."),
    "run": ("running", "Run a command as a job, from flags."),
    "validate": ("files", "Check a job file; needs no daemon."),
    "plan": ("files", "Show what a job file comes to, without submitting it."),
    "preview": ("previewing", "Show the first rows of a job file's data; needs no daemon."),
    "convert": ("files", "Print an original Primus job file as primus/v1."),
    "list": ("reading", "List jobs."),
    "get": ("reading", "Show a job."),
    "describe": ("describing", "Show a job with its timeline, budgets and first cause."),
    "explain": ("explaining", "Say why it waits, restarted, or ended as it did."),
    "replay": ("replaying", "Show a job as it was at a time or after an event."),
    "events": ("following", "Show what happened."),
    "logs": ("following", "Show what the trainers wrote."),
    "wait": ("waiting", "Wait until a job is in a phase, or ended."),
    "cancel": ("acting", "Stop a job for good."),
    "suspend": ("acting", "Stop a job until it is resumed."),
    "resume": ("acting", "Let a suspended job go on."),
    "restart": ("acting", "Restart replicas of a job."),
    "scale": ("acting", "Change how many replicas roles have."),
    "set": ("acting", "Change fields of a living job."),
    "finish": ("acting", "End a job with a verdict of yours."),
    "delete": ("acting", "Forget an ended job."),
    "data": ("feeding", "Show and steer what a job reads."),
    "history": ("history", "List jobs that have ended, with their verdicts."),
    "nodes": ("nodes", "List nodes; add, drain, cordon, uncordon, exclude."),
    "queue": ("queueing", "List queues and who waits; set them up, move jobs in them."),
    "leader": ("leading", "Show who leads, or let another head lead."),
    "strays": ("nodes", "List processes that this daemon does not know."),
    "stacks": ("acting", "Show what every thread of a trainer is doing."),
    "drill": ("drilling", "Bring a fault about, to see whether a trainer resumes."),
    "store": ("storing", "Show the store; back it up, restore it, move it."),
    "version": ("about", "Show the versions of client and daemon."),
    "doctor": ("about", "Check what a daemon and its jobs need."),
    "completion": ("about", "Print the completion script for a shell."),
}


GARBAGE_AFTER = 50_000
"""Objects made, before garbage is looked for; a verb that follows a job for days makes them too."""
LATER = frozenset({"exec", "recommend"} | {"top", "ui", "token"})


class LazyVerbs(click.Group):
    """Loads the module of a verb when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb's command."""
        if cmd_name not in VERBS:
            return None
        return _commands(VERBS[cmd_name][0])[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb; an unknown one is answered with the nearest."""
        name = args[0]
        if name in LATER:
            raise not_yet(name)
        if name not in VERBS:
            import difflib

            near = difflib.get_close_matches(name, VERBS, n=1)
            hint = f"primusctl {near[0]}" if near else "primusctl --help"
            raise CtlError(f"there is no verb {name!r}", hint=hint, exit_code=USAGE)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb. A reader that has seen enough is no error, which click takes it for."""
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _leave_standard_output()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without loading any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


def _commands(module: str) -> Mapping[str, click.Command]:
    """Return the verbs of a module, which is loaded for this."""
    # ruff: noqa: PLC0415 - each costs time that only its own verbs should pay.
    match module:
        case "about":
            from primusd.ctl import about

            return about.COMMANDS
        case "acting":
            from primusd.ctl import acting

            return acting.COMMANDS
        case "describing":
            from primusd.ctl import describing

            return describing.COMMANDS
        case "drilling":
            from primusd.ctl import drilling

            return drilling.COMMANDS
        case "explaining":
            from primusd.ctl import explaining

            return explaining.COMMANDS
        case "feeding":
            from primusd.ctl import feeding

            return feeding.COMMANDS
        case "history":
            from primusd.ctl import history

            return history.COMMANDS
        case "files":
            from primusd.ctl import files

            return files.COMMANDS
        case "leading":
            from primusd.ctl import leading

            return leading.COMMANDS
        case _:
            return _more_commands(module)


def _more_commands(module: str) -> Mapping[str, click.Command]:
    match module:
        case "following":
            from primusd.ctl import following

            return following.COMMANDS
        case "nodes":
            from primusd.ctl import nodes

            return nodes.COMMANDS
        case "previewing":
            from primusd.ctl import previewing

            return previewing.COMMANDS
        case "queueing":
            from primusd.ctl import queueing

            return queueing.COMMANDS
        case "reading":
            from primusd.ctl import reading

            return reading.COMMANDS
        case "replaying":
            from primusd.ctl import replaying

            return replaying.COMMANDS
        case "running":
            from primusd.ctl import running

            return running.COMMANDS
        case _:
            return _last_commands(module)


def _last_commands(module: str) -> Mapping[str, click.Command]:
    match module:
        case "storing":
            from primusd.ctl import storing

            return storing.COMMANDS
        case "submitting":
            from primusd.ctl import submitting

            return submitting.COMMANDS
        case "waiting":
            from primusd.ctl import waiting

            return waiting.COMMANDS
        case _:
            raise AssertionError(f"no module {module}")


@click.group(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="primusctl %(version)s")
@shared_options
def primusctl() -> None:
    """Talk to primusd: submit jobs, watch them, and end them.

    NAME is a job's name, namespace/name, or its uid. Exit codes: 0 ok, 1 failed, 2 usage or invalid
    file, 3 not found, 4 conflict, 5 no daemon, 6 timed out; of a job waited for: 0 Succeeded, 10
    Failed, 11 Cancelled, 12 over its deadline.
    """


def main(argv: list[str] | None = None) -> None:
    """Run primusctl and exit with its code."""
    # What a verb loads is no garbage, and to look for some takes a tenth of its start.
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)
    code = run(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # Python's own end tells of output that found no room.
        sys.exit(code)
    # To take everything apart that ends with the process takes a tenth of a verb.
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run primusctl and return its exit code; errors go to standard error in one line."""
    try:
        result = primusctl.main(
            argv, prog_name="primusctl", standalone_mode=False, obj=Call(os.environ)
        )
        return result if isinstance(result, int) else 0
    except CtlError as error:
        return _told(error)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        return USAGE
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx else "primusctl"
        said = error.format_message().rstrip(".")
        said = said[:1].lower() + said[1:]
        return _told(CtlError(said, hint=f"{verb} --help", exit_code=USAGE))
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED


def _leave_standard_output() -> None:
    """Let what is still buffered go nowhere, so that it does not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: CtlError) -> int:
    hint = f" (try: {error.hint})" if error.hint else ""
    prefix = "" if isinstance(error, DetachedError) else "error: "
    sys.stdout.flush()
    sys.stderr.write(f"{prefix}{error.message}{hint}\n")
    for detail in error.details:
        sys.stderr.write(f"  {detail}\n")
    return error.exit_code
