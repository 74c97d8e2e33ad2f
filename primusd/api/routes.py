"""Every path of the API, in one table."""

from primusd.api import (
    acting,
    blobs_api,
    cluster,
    data,
    drilling,
    explaining,
    feeding,
    jobs,
    logs,
    nodes_api,
    queues_api,
    replaying,
    replicas,
    savepoints,
    stacks,
)
from primusd.api.openapi import Route
from primusd.datafeed.ledger.portable import Portable
from primusd.views import (
    cluster_documents,
    documents,
    drills,
    explanation_documents,
    feed_documents,
    peers,
    queue_documents,
)

API = "/api/v1"
NAME = r"{name:[^/:{}]+}"
STREAM = r"{stream:[^/:{}]+}"
SAVEPOINT = r"{savepoint:[^/:{}]+}"
JOB = f"{API}/namespaces/{{ns:[^/:{{}}]+}}/jobs"
ONE = f"{JOB}/{NAME}"
PAGING = ("limit", "cursor")
WATCHING = ("watch", "resourceVersion", "coalesce")

_JOBS = (
    Route("POST", JOB, jobs.create, "Submit a job.", documents.Job,
          query=("dryRun", "plan", "waitForNodes")),
    Route("GET", JOB, jobs.list_jobs, "List or watch the jobs of a namespace.", documents.JobList,
          query=(*PAGING, "phase", "label", *WATCHING)),
    Route("GET", f"{API}/history", jobs.list_ended, "List ended jobs, the newest first.",
          documents.JobList, query=(*PAGING, "phase", "label", "namespace")),
    Route("GET", f"{API}/jobs", jobs.list_jobs, "List or watch all jobs.", documents.JobList,
          query=(*PAGING, "phase", "label", *WATCHING)),
    Route("GET", ONE, jobs.get, "Show or watch a job.", documents.Job, query=WATCHING),
    Route("PATCH", ONE, jobs.patch, "Change mutable fields of the spec.", documents.Job),
    Route("DELETE", ONE, jobs.delete, "Forget an ended job.", documents.Job),
    Route("POST", f"{ONE}:cancel", acting.cancel, "Stop a job for good.", documents.Job,
          acting.ReasonBody),
    Route("POST", f"{ONE}:finish", acting.finish, "End a job with a verdict.", documents.Job,
          acting.FinishBody),
    Route("POST", f"{ONE}:restart", acting.restart, "Restart replicas.", documents.Job,
          acting.RestartBody),
    Route("POST", f"{ONE}:suspend", acting.suspend, "Stop a job until it is resumed.",
          documents.Job, acting.ReasonBody),
    Route("POST", f"{ONE}:resume", acting.resume, "End a pause.", documents.Job,
          acting.ReasonBody),
    Route("POST", f"{ONE}:scale", acting.scale, "Change how many replicas roles have.",
          documents.Job, dict[str, int]),
    Route("POST", f"{ONE}:drill", drilling.drill, "Bring a fault about on purpose.",
          drills.Drill, drilling.DrillBody),
    Route("GET", f"{ONE}/explain", explaining.explain, "Why it waits, restarted, or ended.",
          explanation_documents.ExplanationList),
    Route("GET", f"{ONE}/replay", replaying.show_replay, "The job as it was at a moment.",
          explanation_documents.Replay, query=("at", "event")),
    Route("GET", f"{ONE}/spec", jobs.spec, "The job file, as JSON, or YAML if accepted.",
          query=("form",)),
    Route("GET", f"{ONE}/replicas", replicas.list_replicas, "List or watch replicas.",
          documents.ReplicaList, query=(*PAGING, "role", "phase", "node", *WATCHING)),
    Route("GET", f"{ONE}/replicas/{{replica}}", replicas.get_replica, "Show a replica.",
          documents.Replica),
    Route("GET", f"{ONE}/replicas/{{replica}}/stacks", stacks.read_stacks,
          "What every thread of a trainer does now."),
    Route("GET", f"{ONE}/peers", replicas.show_peers, "Who is in it now, and where.",
          peers.Peers),
    Route("GET", f"{ONE}/events", replicas.list_events, "List or watch the job's events.",
          documents.EventList, query=("limit", "level", *WATCHING)),
    Route("GET", f"{ONE}/logs", logs.read_logs, "Raw logs, or NDJSON if accepted.",
          query=("role", "index", "attempt", "stream", "since", "tail", "follow")),
    Route("GET", f"{API}/events", replicas.list_all_events, "List or watch all events.",
          documents.EventList, query=("limit", "level", *WATCHING)),
)  # fmt: skip
_DATA = (
    Route("GET", f"{ONE}/data", data.list_streams, "List or watch the job's streams.",
          feed_documents.StreamList, query=WATCHING),
    Route("POST", f"{ONE}/data:verify", data.verify, "Prove every row of every stream.",
          feed_documents.VerificationList),
    Route("POST", f"{ONE}/data:pause", data.pause, "Pause all streams.",
          feed_documents.StreamList),
    Route("POST", f"{ONE}/data:resume", data.resume, "Resume all streams.",
          feed_documents.StreamList),
    Route("GET", f"{ONE}/data/{STREAM}", data.get_stream, "Show a stream.",
          feed_documents.Stream),
    Route("GET", f"{ONE}/data/{STREAM}/rows", feeding.send_to_gateway,
          "Redirect to a gateway that has rows.", query=("form", "wait", "follow")),
    Route("GET", f"{ONE}/data/{STREAM}/tasks", data.list_tasks, "List ranges of a stream.",
          feed_documents.TaskList, query=(*PAGING, "phase")),
    Route("POST", f"{ONE}/data/{STREAM}:verify", data.verify, "Prove every row of a stream.",
          feed_documents.Verification),
    Route("POST", f"{ONE}/data/{STREAM}:pause", data.pause, "Pause a stream.",
          feed_documents.Stream),
    Route("POST", f"{ONE}/data/{STREAM}:resume", data.resume, "Resume a stream.",
          feed_documents.Stream),
)  # fmt: skip
_SAVEPOINTS = (
    Route("GET", f"{ONE}/data/{STREAM}/savepoints", savepoints.list_savepoints,
          "List a stream's savepoints.", feed_documents.SavepointList),
    Route("POST", f"{ONE}/data/{STREAM}/savepoints", savepoints.create_savepoint,
          "Keep positions under a name.", feed_documents.Savepoint, savepoints.SavepointBody),
    Route("GET", f"{ONE}/data/{STREAM}/savepoints/{SAVEPOINT}", savepoints.get_savepoint,
          "Show a savepoint.", feed_documents.Savepoint),
    Route("GET", f"{ONE}/data/{STREAM}/savepoints/{SAVEPOINT}/positions",
          savepoints.export_savepoint, "The positions of a savepoint, by file.", Portable),
    Route("DELETE", f"{ONE}/data/{STREAM}/savepoints/{SAVEPOINT}", savepoints.drop_savepoint,
          "Forget a savepoint.", feed_documents.Savepoint),
    Route("POST", f"{ONE}/data/{STREAM}/savepoints/{SAVEPOINT}:restore",
          savepoints.restore_savepoint, "Go back to a savepoint.", feed_documents.Stream),
    Route("POST", f"{ONE}/data/{STREAM}:skip", savepoints.skip, "Leave a range out.",
          feed_documents.Stream, savepoints.TaskBody),
    Route("POST", f"{ONE}/data/{STREAM}:retry", savepoints.retry, "Read a range again.",
          feed_documents.Stream, savepoints.TaskBody),
    Route("GET", f"{ONE}/data/{STREAM}/history", savepoints.show_history,
          "What happened to a stream.", feed_documents.StreamHistory),
)  # fmt: skip
_NODES = (
    Route("GET", f"{API}/nodes", nodes_api.list_nodes, "List or watch nodes.",
          cluster_documents.NodeList, query=WATCHING),
    Route("GET", f"{API}/nodes/{NAME}", nodes_api.get_node, "Show a node.",
          cluster_documents.Node),
    Route("POST", f"{API}/nodes/{NAME}:add", nodes_api.add_node,
          "Give out a new node's key and our addresses.", cluster_documents.NodeBootstrap),
    Route("POST", f"{API}/nodes/{NAME}:cordon", nodes_api.cordon, "Place nothing new there.",
          cluster_documents.Node),
    Route("POST", f"{API}/nodes/{NAME}:uncordon", nodes_api.uncordon, "Place there again.",
          cluster_documents.Node),
    Route("POST", f"{API}/nodes/{NAME}:forgive", nodes_api.forgive, "End an exclusion.",
          cluster_documents.Node),
    Route("POST", f"{API}/nodes/{NAME}:drain", nodes_api.drain, "Empty a node.",
          cluster_documents.Node, nodes_api.DrainBody),
    Route("POST", f"{API}/nodes/{NAME}:exclude", nodes_api.exclude, "Leave a node out for a while.",
          cluster_documents.Node, nodes_api.ExcludeBody),
    Route("GET", f"{API}/strays", nodes_api.list_strays, "List unknown processes.",
          cluster_documents.StrayList),
    Route("POST", f"{API}/strays/{{id:[^/:{{}}]+}}:stop", nodes_api.stop_stray, "End a stray.",
          cluster_documents.Stray),
    Route("POST", f"{API}/strays/{{id:[^/:{{}}]+}}:adopt", nodes_api.adopt_stray,
          "Take a stray into this store.", cluster_documents.Stray),
)  # fmt: skip
_CLUSTER = (
    Route("HEAD", f"{API}/blobs/{{digest}}", blobs_api.head_blob, "Whether a content is here."),
    Route("PUT", f"{API}/blobs/{{digest}}", blobs_api.put_blob, "Send a content."),
    Route("GET", f"{API}/cluster", cluster.cluster, "Who leads.", cluster_documents.Cluster),
    Route("GET", "/healthz", cluster.healthz, "Whether the loop turns."),
    Route("GET", "/readyz", cluster.readyz, "Whether this daemon leads."),
    Route("GET", "/version", cluster.version, "Which program answers.",
          cluster_documents.Version),
    Route("GET", "/metrics", cluster.metrics, "Figures for Prometheus."),
    Route("GET", "/openapi.json", cluster.openapi_json, "This description."),
    Route("GET", "/", cluster.screen, "One plain screen."),
    Route("GET", "/webapps/primus/status.json", cluster.original_status,
          "A job's status in the original's shape.", query=("job",)),
)  # fmt: skip
_QUEUES = (
    Route("GET", f"{API}/queues", queues_api.list_queues, "List or watch queues.",
          queue_documents.QueueList, query=WATCHING),
    Route("GET", f"{API}/queues/{NAME}", queues_api.get_queue, "Show a queue and who waits in it.",
          queue_documents.Queue),
    Route("POST", f"{API}/queues/{NAME}:set", queues_api.set_queue, "Set up a queue.",
          queue_documents.Queue, queues_api.SetBody),
    Route("POST", f"{API}/queues/{NAME}:reset", queues_api.reset_queue,
          "Forget what was set: as the configuration file has it.", queue_documents.Queue),
    Route("POST", f"{API}/queues/{NAME}:move", queues_api.move, "Move a job that waits.",
          documents.Job, queues_api.MoveBody),
)  # fmt: skip
LATER_PATHS: tuple[tuple[str, str, str], ...] = ()
"""Paths that answer 422 NotYet with a sentence; the table shrinks with each issue."""

ROUTES = (
    *_JOBS,
    *_DATA,
    *_SAVEPOINTS,
    *_NODES,
    *_QUEUES,
    *_CLUSTER,
    *(
        Route(method, path, jobs.not_yet(what), f"Not yet: {what}.")
        for method, path, what in LATER_PATHS
    ),
)
