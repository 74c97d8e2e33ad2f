"""Heads, nodes and executors one version apart, within one job with data.

The newer version is a copy of the code with a raised schema and protocol.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import primusd
from primusd.executor.protocol import VERSION
from primusd.records import SCHEMA
from tests.real.conftest import WAIT_S
from tests.real.separate_heads import Cluster, Node, on_one_host, other

NEWER = "99.0.0"
ROOT = Path(primusd.__file__).parents[1]


def raised(file: Path, before: str, after: str) -> None:
    """Replace the one line of a file that begins so."""
    text, count = re.subn(rf"(?m)^{re.escape(before)}.*$", after, file.read_text())
    assert count == 1, (file, before)
    file.write_text(text)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a newer version."""
    folder = tmp_path_factory.mktemp("newer")
    for name in ("primusd", "primus"):
        # With what Python has compiled: it goes by the time of each file, which stays.
        shutil.copytree(ROOT / name, folder / name)
    raised(folder / "primusd/__init__.py", "__version__ = ", f'__version__ = "{NEWER}"')
    raised(folder / "primusd/records.py", "SCHEMA = ", f"SCHEMA = {SCHEMA + 1}")
    protocol = folder / "primusd/executor/protocol.py"
    raised(protocol, "VERSION = ", f"VERSION = {VERSION + 1}")
    raised(protocol, "SPEAKS = ", f"SPEAKS = ({VERSION}, {VERSION + 1})")
    return str(folder)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with on_one_host(tmp_path) as made:
        yield made


def restart(cluster: Cluster, name: str, newer: str = "") -> None:
    """Stop a head in order, and start it as the older version, or as the newer one."""
    head = cluster.heads[name]
    if head.daemon is not None and head.daemon.poll() is None:
        assert head.stop() == 0
    head.environment.pop("PYTHONPATH", None)
    if newer:
        head.environment["PYTHONPATH"] = newer
    cluster.start(name, is_awaited=False)


def upgrade_node(cluster: Cluster, node: Node, newer: str) -> None:
    """Replace a node by one of the newer version; what it has started runs on."""
    assert node.process is not None
    node.process.kill()
    node.process.wait(timeout=WAIT_S)
    node.start(cluster.heads["a"], {"PYTHONPATH": newer})
    connected = f'"node": "{node.name}", "version": "{NEWER}"'
    logs = [head.log for head in cluster.heads.values()]
    cluster.heads["a"].until(
        "the newer node is known", lambda: any(connected in one.read_text() for one in logs)
    )


@pytest.mark.timeout(300)
def test_heads_nodes_and_executors_are_upgraded_one_by_one_while_a_job_reads(
    cluster: Cluster, newer: str
) -> None:
    # A newer node, whose executors are newer as well, under an older head.
    upgrade_node(cluster, cluster.nodes[1], newer)
    cluster.submit(rows=3_000)
    before = cluster.trainers()
    assert {one.partition("/")[0] for one in cluster.printed()} == {"node-n1", "node-n2"}
    first = cluster.leader()
    second = other(first)

    # A newer head beside the older one that leads, and then in its place: it reads its journal.
    restart(cluster, second, newer)
    cluster.is_at_rest(first)
    restart(cluster, first)
    cluster.is_at_rest(second)
    cluster.goes_on()

    # What the newer one writes the older one does not read: it hands on, and does not lead.
    older = cluster.heads[first]
    older.until("it says so", lambda: '"leadership.refused"' in older.log.read_text())
    refused = f"schema {SCHEMA + 1}; this primusd knows schemas to {SCHEMA}"
    assert refused in older.log.read_text()
    assert older.phase("rows") == "Running"
    led = older.log.read_text().count('"engine.led"')
    cluster.heads[second].kill()
    older.until("nobody leads", lambda: not cluster.serves(first))
    restart(cluster, second, newer)
    older.until("the newer one leads", lambda: cluster.leads(second))
    assert older.log.read_text().count('"engine.led"') == led

    # The older ones follow: executors stay what they are.
    restart(cluster, first, newer)
    cluster.is_at_rest(second)
    cluster.heads[second].ctl("leader", "resign")
    cluster.is_at_rest(first)
    upgrade_node(cluster, cluster.nodes[0], newer)
    cluster.goes_on()
    cluster.check_end(before)
