"""A real HDFS of one NameNode and one DataNode for tests, from the jars of `tests/services`."""

import getpass
import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.services.build import need_jars
from tests.services.processes import Service, free_ports, java

USER = getpass.getuser()
"""Who starts it may do all; others what the permissions of files say."""
PACKAGE = "org.apache.hadoop.hdfs.server"
LOG_PROPERTIES = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""


class Hdfs:
    """A NameNode and a DataNode in a folder of their own.

    Attributes:
        url: `hdfs://127.0.0.1:<port>`.
        web: Host and port of WebHDFS.
        conf: Its `core-site.xml` and `hdfs-site.xml`, as clients read them.
        name_node: The process that knows which files there are.
        data_node: The process that has their bytes.
    """

    def __init__(self, folder: Path, jars: Path, settings: Mapping[str, str] | None = None) -> None:
        """Write the configuration and make an empty file system; nothing runs yet.

        Args:
            folder: Of its own.
            jars: From `need_jars`.
            settings: More of its `hdfs-site.xml`.
        """
        name, web, data, data_web, data_ipc = free_ports(5)
        self.url = f"hdfs://127.0.0.1:{name}"
        self.web = f"127.0.0.1:{web}"
        self.conf = folder / "conf"
        self.conf.mkdir(parents=True)
        _write_site(
            self.conf / "core-site.xml",
            {
                "fs.defaultFS": self.url,
                "hadoop.tmp.dir": f"{folder}/tmp",
                "hadoop.security.authentication": "simple",
                "ipc.client.connect.max.retries": "3",
            },
        )
        _write_site(
            self.conf / "hdfs-site.xml",
            {
                "dfs.replication": "1",
                "dfs.namenode.name.dir": f"file://{folder}/name",
                "dfs.datanode.data.dir": f"file://{folder}/data",
                "dfs.namenode.rpc-address": f"127.0.0.1:{name}",
                "dfs.namenode.http-address": self.web,
                "dfs.datanode.address": f"127.0.0.1:{data}",
                "dfs.datanode.http.address": f"127.0.0.1:{data_web}",
                "dfs.datanode.ipc.address": f"127.0.0.1:{data_ipc}",
                "dfs.datanode.hostname": "127.0.0.1",
                "dfs.datanode.du.reserved": "0",
                "dfs.namenode.safemode.extension": "0",
                "dfs.namenode.safemode.min.datanodes": "1",
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.namenode.fs-limits.min-block-size": "1024",
                # A DataNode that is gone shall be missed within seconds.
                "dfs.heartbeat.interval": "1",
                "dfs.namenode.heartbeat.recheck-interval": "1000",
                **(settings or {}),
            },
        )
        (self.conf / "log4j.properties").write_text(LOG_PROPERTIES)
        name_node = f"{PACKAGE}.namenode.NameNode"
        flags = ("-format", "-nonInteractive", "-force")
        format_it = java(jars, name_node, *flags, heap_mib=96, conf=self.conf)
        self._format = Service("format", format_it, folder)
        self.name_node = Service(
            "namenode", java(jars, name_node, heap_mib=96, conf=self.conf), folder
        )
        data_node = java(jars, f"{PACKAGE}.datanode.DataNode", heap_mib=64, conf=self.conf)
        self.data_node = Service("datanode", data_node, folder)

    def start(self) -> None:
        """Start both and wait until files can be written."""
        self._format.start()
        assert self._format.wait() == 0, self._format.told()
        self.name_node.start()
        self.data_node.start()
        self.until_ready()

    def until_ready(self) -> None:
        """Wait until the NameNode has its DataNode and left safe mode."""
        self.name_node.until("a DataNode and no safe mode", self._is_ready)

    def stop(self) -> None:
        """End both; nobody reads their data again."""
        self.data_node.kill()
        self.name_node.kill()

    def put(self, path: str, data: bytes) -> None:
        """Write a file, whole, over one that is there."""
        asked = f"CREATE&overwrite=true&noredirect=true&blocksize={128 << 20}"
        where = quote(json.loads(self.ask("PUT", path, asked))["Location"], safe=":/?&=%")
        self._send(urllib.request.Request(where, data=data, method="PUT"))

    def ask(self, method: str, path: str, operation: str) -> bytes:
        """Return what WebHDFS answers: `ask("DELETE", "/a", "DELETE&recursive=true")`."""
        url = f"http://{self.web}/webhdfs/v1{quote(path)}?op={operation}&user.name={USER}"
        return self._send(urllib.request.Request(url, method=method))

    def _send(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def _is_ready(self) -> bool:
        beans = "qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(f"http://{self.web}/jmx?{beans}", timeout=5) as answer:
                state = json.loads(answer.read())["beans"][0]
        except (OSError, IndexError, ValueError):
            return False
        return bool(state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational")


@contextmanager
def running_hdfs(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Hdfs]:
    """Start an HDFS, and end it; skips the test, or fails it in CI, where its jars are missing."""
    hdfs = Hdfs(folder, need_jars("hdfs"), settings)
    try:
        hdfs.start()
        yield hdfs
    finally:
        hdfs.stop()


def _write_site(path: Path, values: Mapping[str, str]) -> None:
    lines = [
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in values.items()
    ]
    path.write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")
