"""The configuration as a person reads it: `--check-config`, and the faults when there are any."""

import json
from collections.abc import Mapping

from msgspec import Struct

from primusd.config.schema import SettingPath, section_of
from primusd.config.settings import Loaded
from primusd.config.values import show_value
from primusd.errors import ConfigError

UNKNOWN = "an unknown setting"


def problem_text(error: ConfigError) -> str:
    """Return what stands on standard error: a line that says how many, then a line per fault."""
    lines = [f"error: {error.message}"]
    for problem in error.errors:
        if not problem.path:
            continue
        allowed = problem.allowed
        words = allowed if isinstance(allowed, str) else ", ".join(allowed)
        hint = f" ({problem.hint})" if problem.hint else ""
        joint = "known are" if problem.found == UNKNOWN else "must be"
        lines.append(f"  {problem.at}: {problem.path} is {problem.found}, {joint} {words}{hint}")
    return "\n".join(lines)


def check_text(loaded: Loaded) -> str:
    """Return the effective configuration as TOML that can be loaded, each line with its origin."""
    lines = [
        f"# file   {loaded.file or f'none in {loaded.directories.config}'}",
        f"# state  {loaded.directories.state}",
        f"# run    {loaded.directories.run}",
    ]
    _show(loaded.config, (), loaded.origins, lines)
    for name, queue in loaded.config.queues.items():
        _show(queue, ("queues", name), loaded.origins, lines)
    return "\n".join(lines) + "\n"


def _show(
    values: Struct, prefix: SettingPath, origins: Mapping[str, str], lines: list[str]
) -> None:
    section = section_of(type(values))
    if prefix and section.settings:
        lines += ["", f"[{'.'.join(prefix)}]"]
    for setting in section.settings:
        shown = _toml(show_value(setting.rule, getattr(values, setting.field)))
        origin = origins[".".join((*prefix, setting.key))]
        lines.append(f"{f'{setting.key} = {shown}':<48} # {origin}")
    for name in section.tables:
        _show(getattr(values, name), (*prefix, name), origins, lines)


def _toml(value: object) -> str:
    match value:
        case Mapping():
            inner = ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items())
            return f"{{{inner}}}"
        case list():
            return f"[{', '.join(_toml(one) for one in value)}]"
        case _:
            # Texts, numbers and booleans are spelled alike in JSON and TOML.
            return json.dumps(value, ensure_ascii=False)
