"""What every test gets: strict limits, and at the end what each part cost."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no finding; hanging tests are ended by pytest-timeout.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the pages and golden files made from code anew",
    )
    parser.addoption(
        "--costs", default="", help="file of `name ok|FAILED milliseconds` of the parts run before"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the cost of the parts of `make test`, then of each folder of tests."""
    costs_file = terminalreporter.config.getoption("--costs")
    if not costs_file:
        return
    terminalreporter.section("what each part cost")
    for line in Path(costs_file).read_text(encoding="utf-8").splitlines():
        name, word, cost_ms = line.split()
        terminalreporter.write_line(f"{int(cost_ms) / 1000:8.1f} s  {name}  {word}")
    seconds: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = "/".join(Path(report.nodeid.partition("::")[0]).parts[:2])
                seconds[folder] += report.duration
                counts[folder] += report.when == "call"
    for folder in sorted(seconds, key=lambda folder: -seconds[folder]):
        terminalreporter.write_line(
            f"{seconds[folder]:8.1f} s  {folder}  {counts[folder]} tests, time of all workers added"
        )
