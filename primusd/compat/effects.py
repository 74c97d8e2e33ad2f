"""Fields of original job files that have no effect here, each with its reason."""

_NO_JVM = "there is no JVM beside a trainer"
_NO_MASTER = "there is no application master; the daemon itself holds the job"
_OWN_PULSE = "pulse and silence are measured in primusd's own way"
_LOCAL = "it configures a back end that the local launcher does not use"
_DEAD = "the original reads it and does nothing with it"
_OWN_STORE = "the journal keeps this state"
_LEDGER = "each position is durable when it is acknowledged, and read by ranges, not by tasks"
_UNKNOWN = "neither the original nor primusd knows it"

# Patterns of paths, the names in lowerCamelCase; the longest that is a prefix holds.
REASONS: dict[str, str] = {
    "amAllocationTimeoutMin": _DEAD,
    "apiServerConf": _OWN_STORE,
    "blacklistConfig": "primusd excludes faulty nodes by its own rule",
    "coreDumpEnable": "limits of core files are those of the node",
    "customMetricTags": "metrics carry primusd's own labels",
    "eventLogConfig": "events are in the journal, see primusctl events",
    "fifoPipe": _DEAD,
    "gracefulShutdownTimeoutMin": "it is no whole number of minutes above 0",
    "historyHdfsBase": "history is kept in the state directory",
    "inputManager.fileConfig.inputs.*.name": "sources have no names here",
    "inputManager.fileConfig.inputs.*.spec.rewindSkipNum": _LEDGER,
    "inputManager.fileConfig.stopPolicy.taskFailedPercent": (
        "a record that cannot be read fails the job; see onBad"
    ),
    "inputManager.gracefulShutdownTimeWaitSec": "a trainer that was told to stop has its own grace",
    "inputManager.maxAllowedIoException": _LEDGER,
    "inputManager.maxNumWorkerFeederClients": "rows come on standard input",
    "inputManager.maxTaskAttempts": _LEDGER,
    "inputManager.maxTaskNumPerWorker": _LEDGER,
    "inputManager.messageBufferForceFlush": "rows are passed on as they are read",
    "inputManager.messageBufferSize": "no record is too large for a buffer here",
    "inputManager.numBuildTaskThreads": "files are listed by the daemon",
    "inputManager.socketSendBufferSize": "rows come on standard input",
    "inputManager.workPreserve": _LEDGER,
    "kubernetesJobConf": _LOCAL,
    "maxAppAttempts": _NO_MASTER,
    "migrationConf": _DEAD,
    "portRange": "ports are allotted by the node from its own range",
    "priority": "priorities of YARN are not those of primusd's queue; use --set priority=50",
    "progressManagerConf": "progress is that of rows acknowledged and replicas completed",
    "progressManagerType": "progress is that of rows acknowledged and replicas completed",
    "region": _DEAD,
    "role.*.attribute": _DEAD,
    "role.*.failover.commonFailoverPolicy.maxGlobalRoleFailureTimes": _DEAD,
    "role.*.failover": "the failover policy has no such field",
    "role.*.gpuSoftConstraint": _DEAD,
    "role.*.isEvaluation": _DEAD,
    "role.*.javaOpts": _NO_JVM,
    "role.*.jvmMemoryMb": _NO_JVM,
    "role.*.localRestartTimes": _DEAD,
    "role.*.minNum": "only a dynamic policy asks for it",
    "role.*.pluginConfig": "there are no launch plugins",
    "role.*.roleScheduler": _DEAD,
    "role.*.scheduleStrategy": _DEAD,
    "role.*.scheduleStrategy.elasticResource": "memory grows here after an end by want of it",
    "role.*.scheduleStrategy.roleCategory": ("PRIMUS_ROLE_CATEGORY is told from the role's name"),
    "role.*.useTfDataService": _DEAD,
    "runningMode": _DEAD,
    "runtimeConf": _LOCAL,
    "scheduler": _NO_MASTER,
    "scheduler.heartbeatIntervalMs": _OWN_PULSE,
    "scheduler.maxMissedHeartbeat": _OWN_PULSE,
    "scheduler.registerRetryTimes": "a gang that is not complete is released and tried again",
    "scheduler.schedulePolicy": "the time-outs of a policy do nothing in the original",
    "setupPortRetryMaxTimes": "ports are allotted by the node from its own range",
    "sleepBeforeExitMs": "nothing waits at the end of a job",
    "snapshotCopyThreadsCnt": _OWN_STORE,
    "stagingDir": "files are kept by content in the state directory",
    "statusEventLogConf": _DEAD,
    "stdPipe": _DEAD,
    "timelineConfig": _DEAD,
    "uniqueNameConfig": _DEAD,
    "yarnApplicationTags": _LOCAL,
    "yarnConf": _LOCAL,
}


def reason(pattern: str) -> str:
    """Return why a field has no effect, by the longest row that is a prefix of its path."""
    parts = pattern.split(".")
    for length in range(len(parts), 0, -1):
        found = REASONS.get(".".join(parts[:length]))
        if found:
            return found
    return _UNKNOWN
