"""The inputManager of an original job file, as one stream."""

import re

from primusd.compat.draft import Draft
from primusd.compat.kafka import kafka_framing, kafka_sources
from primusd.compat.original import Fields, Path

CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def convert_input(manager: Fields, stream: str, draft: Draft) -> None:
    """Put the stream that all roles with input share."""
    path: Path = ("data", stream)
    draft.sources[path] = manager.path
    sources: list[dict[str, object]] = []
    framings: set[str] = set()
    forms: list[object] = []
    files = manager.message("fileConfig")
    for index, one in enumerate(files.messages("inputs")):
        source, framing, origins, form = _file_source(one)
        draft.sources[*path, "sources", index] = one.path
        draft.sources |= {(*path, "sources", index, key): at for key, at in origins.items()}
        sources.append(source)
        framings.add(framing)
        forms.append(form)
    if manager.has("kafkaConfig"):
        topics = manager.message("kafkaConfig")
        for topic, at in kafka_sources(topics):
            draft.sources[*path, "sources", len(sources), "kafka"] = at
            sources.append({"kafka": topic})
        framings.add(kafka_framing(topics))
        topics.report_rest()
    draft.put((*path, "sources"), sources, manager.path)
    if any(form != forms[0] for form in forms):
        manager.report.mistake(
            manager.at("fileConfig"),
            hint="inputs that are read by a class and others cannot share one stream",
        )
    draft.put((*path, "format"), forms[0] if forms else "text", manager.path)
    # Without gracefulShutdown the original never waits for readers to finish what is left.
    leftover = "fail" if manager.flag("gracefulShutdown") else "allow"
    draft.put((*path, "leftover"), leftover, manager.at("gracefulShutdown"))
    _framing(manager, framings, draft)
    _stop_policy(files)
    if rate := files.take("sampleRate"):
        at = files.at("sampleRate")
        draft.put((*path, "sample"), rate, at)
        files.report.note(at, "the same rows in each run are left out, not whole tasks at random")
    _work_preserve(manager, path, draft)
    files.report_rest()
    manager.report_rest()


def _file_source(one: Fields) -> tuple[dict[str, object], str, dict[str, Path], object]:
    """Return a source, how its records are framed, where fields came from, and its format."""
    spec = one.message("spec")
    folder, name = spec.text("pathPattern"), spec.text("namePattern")
    if not folder:
        spec.report.mistake(spec.at("pathPattern"), hint="pathPattern is missing")
    # Without a scheme a path is local, since no Hadoop configuration says otherwise.
    source: dict[str, object] = {"files": f"{folder.rstrip('/')}/{name}"}
    origins = {"files": spec.at("pathPattern"), "marker": spec.at("successMarkerPatterns")}
    origins |= {end: (*spec.at("timeRange"), end) for end in ("from", "to")}
    markers = spec.texts("successMarkerPatterns")
    if markers:
        source["marker"] = markers[0] if len(markers) == 1 else markers
    if spec.has("timeRange"):
        source |= _time_range(spec.message("timeRange"))
    framing = "raw" if spec.has("rawInput") else "lines"
    for kind in ("textInput", "rawInput"):
        spec.message(kind).report_rest()
    form = _customized(spec.message("customizedInput")) if spec.has("customizedInput") else "text"
    spec.report_rest()
    one.report_rest()
    return source, framing, {key: at for key, at in origins.items() if key in source}, form


def _customized(own: Fields) -> object:
    """Return the format of files that a class of the user's reads: one in Python."""
    name, parameters = own.text("className"), own.pairs("params")
    if not CLASS.fullmatch(name):
        own.report.mistake(
            own.at("className"),
            found=name,
            hint="a class of Java does not run here; write it in Python (docs/datafeed.md), ship "
            "its file with files, and name it as module:Class",
        )
    own.report_rest()
    return {"name": "class", "class": name, "parameters": parameters}


def _time_range(span: Fields) -> dict[str, object]:
    found: dict[str, object] = {}
    for end in ("from", "to"):
        moment = span.message(end)
        if moment.has("now"):
            moment.take("now")
            found[end] = "now"
        elif moment.has("dateHour"):
            hour = moment.message("dateHour")
            found[end] = f"{_date(hour)}T{hour.number('hour'):02d}"
        elif moment.has("date"):
            found[end] = _date(moment.message("date"))
        moment.report_rest()
    span.report_rest()
    return found


def _date(day: Fields) -> str:
    digits = f"{day.number('date'):08d}"
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"


def _framing(manager: Fields, framings: set[str], draft: Draft) -> None:
    if framings == {"raw", "lines"}:
        manager.report.mistake(
            manager.at("fileConfig"),
            hint="lines (textInput, JSON) and bytes (rawInput, PB) cannot share one pipe",
        )
    elif framings == {"raw"}:
        for name, role in draft.roles().items():
            if role.get("feed") == "stdin":
                draft.put(("roles", name, "framing"), "raw", manager.at("fileConfig"))


def _stop_policy(files: Fields) -> None:
    policy = files.message("stopPolicy")
    percent = policy.take("taskSuccessPercent")
    if percent not in (None, 0, 100):
        policy.report.note(
            policy.at("taskSuccessPercent"), "has no effect: every row has to be accounted for"
        )
    policy.report_rest()


def _work_preserve(manager: Fields, path: Path, draft: Draft) -> None:
    """Keep positions from one job to the next where the original does.

    It takes a file that was changed meanwhile as it is, from where it was.
    """
    preserve = manager.message("workPreserve")
    store = preserve.message("hdfsConfig")
    if staging := store.text("stagingDir"):
        draft.put((*path, "staging"), staging, store.at("stagingDir"))
    store.report_rest()
    preserve.report_rest()
