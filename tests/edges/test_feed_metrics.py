"""Figures of streams and readers in Prometheus' text form."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.api.metrics import metrics_text
from primusd.datafeed.protocol import FeedReport
from primusd.job.ids import AttemptId
from primusd.views.live import Live, LiveWait
from tests.edges.api_server import NAMESPACE, Server, serve

STREAM = {"clicks": {"sources": [{"files": "/data/*.txt"}]}}
READER = {"worker": {"replicas": 1, "command": ["x"], "data": "clicks"}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


def test_streams_and_readers_have_series_while_their_job_lives(server: Server) -> None:
    uid = str(server.submit(roles=READER, data=STREAM)["uid"])
    server.list_units(uid, sizes=(1_000, 1_000, 1_000))
    server.run_job(uid)
    server.read(uid, 400)
    feed = FeedReport("clicks", (), 0, rows_per_s=70, buffered_bytes=4_096, rows=40)
    attempt = AttemptId(uid, "worker", 0, 1)
    live = Live(feeds={attempt: (feed,)}, waits={(attempt, "clicks"): LiveWait(20_000, 61, 2)})
    context = replace(server.context, live=lambda: live)

    text = metrics_text(context).decode()

    labels = 'job="hello",namespace="default",stream="clicks"'
    assert f"primus_stream_done{{{labels}}} 400.0" in text
    assert f"primus_stream_expected{{{labels}}} 3000.0" in text
    reader = 'job="hello",namespace="default",replica="worker-0",stream="clicks"'
    assert f"primus_reader_rows{{{reader}}} 40.0" in text
    assert f"primus_reader_per_second{{{reader}}} 70.0" in text
    assert f"primus_reader_buffered_bytes{{{reader}}} 4096.0" in text
    assert f"primus_reader_waited_percent{{{reader}}} 61.0" in text

    server.client.call("POST", f"{NAMESPACE}/hello:cancel", body={})
    server.end_attempts(uid)

    assert "primus_stream_done{" not in metrics_text(context).decode()
