"""The daemon's own log: two forms, levels, and a list of every event name that the source uses."""

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from primusd import logs

SOURCE = Path(__file__).parents[2] / "primusd"
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT = re.compile(r"[a-z][a-z_]*\.[a-z][a-z_]*")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Other tests find logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_away_from_a_terminal_each_line_is_a_json_object() -> None:
    stream = io.StringIO()
    logs.configure("info", "", stream=stream)

    structlog.get_logger().warning("attempt.exited", job="06f3", replica="wörker-3", exit_code=137)

    line = json.loads(stream.getvalue())
    assert line.pop("at").endswith("Z")
    assert line == {
        "event": "attempt.exited",
        "level": "warning",
        "job": "06f3",
        "replica": "wörker-3",
        "exit_code": 137,
    }


def test_a_terminal_gets_text_and_the_form_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal, pipe = Terminal(), io.StringIO()

    logs.configure("info", "", stream=terminal)
    structlog.get_logger().info("node.seen", node="n1")
    logs.configure("info", "text", stream=pipe)
    structlog.get_logger().info("node.seen", node="n1")

    for shown in (terminal.getvalue(), pipe.getvalue()):
        assert "node.seen" in shown
        assert "node=n1" in shown
        assert "\x1b" not in shown


def test_a_second_call_changes_the_level_of_loggers_in_use() -> None:
    stream = io.StringIO()
    log = structlog.get_logger()
    logs.configure("error", "json", stream=stream)
    log.info("node.seen")
    assert stream.getvalue() == ""

    logs.configure("debug", "json", stream=stream)
    log.debug("node.seen")

    assert "node.seen" in stream.getvalue()


def test_what_libraries_log_has_the_same_form() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)

    logging.getLogger("aiohttp.server").error("bad request from %s", "10.0.0.1")
    logging.getLogger("aiohttp.access").info("GET /")

    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "bad request from 10.0.0.1"
    assert json.loads(line)["logger"] == "aiohttp.server"


def test_an_exception_stays_on_one_json_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)

    try:
        int("first\nsecond")
    except ValueError:
        structlog.get_logger().exception("machine.wedged")

    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in json.loads(line)["exception"]
    assert json.loads(line)["exception"].count("\n") > 1


def used_names() -> Iterator[tuple[str, str]]:
    """Yield (place, event name or "") of each call of a logger in the source."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in METHODS
                and "log" in ast.unparse(node.func.value).lower().split(".")[-1].split("(")[0]
            ):
                first = node.args[0] if node.args else None
                name = first.value if isinstance(first, ast.Constant) else ""
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", str(name)


def test_every_event_name_of_the_source_stands_in_the_list_and_none_else() -> None:
    used = list(used_names())

    assert [place for place, name in used if not EVENT.fullmatch(name)] == []
    assert {name for _, name in used} == logs.EVENTS
