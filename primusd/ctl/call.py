"""What every verb gets: the options all verbs share, the client made from them, and the printer."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from primusd.ctl.client import Client
from primusd.ctl.failures import USAGE, CtlError
from primusd.ctl.finding import find_address, find_token
from primusd.ctl.output import FORMS, Printer

DEFAULT_NAMESPACE = "default"
Function = TypeVar("Function", bound=Callable[..., object])


class Call:
    """One call of primusctl: the shared options, read only when they are needed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.options: dict[str, object] = {}
        self._client: Client | None = None

    def option(self, name: str, default: str = "") -> str:
        """Return a shared option's text."""
        value = self.options.get(name)
        return default if value is None else str(value)

    @property
    def client(self) -> Client:
        """The client of the daemon that was named or found."""
        if self._client is None:
            self._client = Client(
                find_address(self.option("address"), self.environ),
                token=find_token(self.option("token_file"), self.environ),
                ca=self.option("ca"),
                timeout_s=self.timeout_s,
                is_verbose=bool(self.options.get("verbose")),
            )
        return self._client

    @property
    def timeout_s(self) -> float:
        """How long one request may take."""
        text = self.option("request_timeout")
        return duration_s(text, "--request-timeout") if text else 30.0

    @property
    def printer(self) -> Printer:
        """Where results go."""
        return self.printer_of(FORMS)

    def printer_of(self, forms: tuple[str, ...], default: str = "table") -> Printer:
        """Return where results go, for a verb that has these forms.

        Raises:
            CtlError: The form that was asked for is none of them.
        """
        form = self.option("output", default)
        if form not in forms:
            raise CtlError(
                f"-o {form} is no form of this verb", hint=" | ".join(forms), exit_code=USAGE
            )
        return Printer(form, no_color=bool(self.options.get("no_color")), now_s=time.time())

    @property
    def is_quiet(self) -> bool:
        """Whether only results are printed, no advice."""
        return bool(self.options.get("quiet"))

    @property
    def namespace(self) -> str:
        """The namespace in force."""
        named = self.option("namespace") or self.environ.get("PRIMUS_NAMESPACE", "")
        return named or DEFAULT_NAMESPACE

    @property
    def has_all_namespaces(self) -> bool:
        """Whether `-A` was given."""
        return bool(self.options.get("all_namespaces"))

    def job(self, name: str) -> tuple[str, str]:
        """Return namespace and name of what a person calls a job: `name`, `ns/name` or a uid."""
        namespace, slash, rest = name.partition("/")
        if not slash:
            return self.namespace, name
        if not namespace or not rest or "/" in rest:
            raise CtlError(
                f"{name!r} is no job's name", hint="name, namespace/name or a uid", exit_code=USAGE
            )
        return namespace, rest


def duration_s(text: str, option: str) -> float:
    """Return the seconds of `30s` or `5m`; a bare number is seconds.

    Raises:
        CtlError: It is no duration.
    """
    from primusd.units import UnitError, parse_duration_ms  # noqa: PLC0415 - seldom needed

    try:
        return float(text) if text.isdecimal() else parse_duration_ms(text) / 1000
    except UnitError as error:
        raise CtlError(f"{option}: {error}", hint=error.allowed, exit_code=USAGE) from error


def _kept(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None and value is not False:
        assert parameter.name is not None
        call = context.find_object(Call)
        assert call is not None, "main gives every call one"
        call.options[parameter.name] = value


_SHARED = (
    (("--address",), {"metavar": "URL", "help": "unix:/path, http://… or https://…; several: a,b"}),
    (("--token-file",), {"metavar": "FILE", "help": "Token for a daemon over TCP."}),
    (("--ca",), {"metavar": "FILE", "help": "Certificates to trust."}),
    (("-n", "--namespace"), {"metavar": "NS", "help": "Namespace; default: default."}),
    (("-A", "--all-namespaces"), {"is_flag": True, "help": "All namespaces."}),
    (("-o", "--output"), {"metavar": "FORM", "help": "table|wide|json|yaml|spec|name|jsonl"}),
    (("-q", "--quiet"), {"is_flag": True, "help": "Results only, no advice."}),
    (("--no-color",), {"is_flag": True, "help": "No colours."}),
    (("--request-timeout",), {"metavar": "30s", "help": "Of one request."}),
    (("-v", "--verbose"), {"is_flag": True, "help": "Show requests on standard error."}),
)


def shared_options(function: Function) -> Function:
    """Give a command the options that all verbs share; they reach it through its Call."""
    for names, settings in reversed(_SHARED):
        option = click.option(*names, **settings, expose_value=False, callback=_kept, default=None)
        function = option(function)
    return function


class Verb(click.Command):
    """A verb of primusctl: shows the shared options apart from its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write this verb's own options; the shared ones stand in `primusctl --help`."""
        shared = {names[-1] for names, _ in _SHARED}
        own = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not shared & set(parameter.opts):
                own.append(record)
        with formatter.section("Options"):
            formatter.write_dl(own)
        formatter.write_text("Options of all verbs: primusctl --help")


pass_call = click.make_pass_decorator(Call)
