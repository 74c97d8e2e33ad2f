"""Whatever is written into a job file, it is a spec or an error in words (C34)."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primusd.compat.original import is_original
from primusd.errors import PrimusdError
from primusd.job.spec import (
    Budgets,
    JobSpec,
    Reading,
    Ready,
    Resources,
    Restart,
    RoleSpec,
    ShippedSpec,
    Source,
    Split,
    Stop,
    StreamSpec,
    Success,
)
from primusd.jobfile import (
    ParseContext,
    apply_patch,
    parse,
    parse_document,
    plan,
    read_document,
    render,
    to_yaml,
)
from primusd.jobfile.checking import JOB_FIELDS
from primusd.jobfile.document import leaves
from primusd.jobfile.roles import ROLE_FIELDS
from primusd.jobfile.streams import SOURCE_FIELDS, STREAM_FIELDS
from primusd.jobfile.yamlwriting import write_yaml

SPECS = Path(__file__).parents[1] / "golden" / "specs"
CONTEXT = ParseContext(base_dir="/d")
DOCUMENTS = [
    read_document(path.read_bytes(), filename=path.name).root
    for folder in ("good", "bad")
    for path in sorted((SPECS / folder).iterdir())
    if path.suffix != ".out"
    and (folder == "good" or path.stem in ("not_yet", "original_not_yet", "streams", "units"))
]
OURS = [document for document in DOCUMENTS if not is_original(document)]

texts = st.text(max_size=12)
keys = st.one_of(
    st.sampled_from([*JOB_FIELDS, *ROLE_FIELDS, *STREAM_FIELDS, *SOURCE_FIELDS]), texts
)
words = st.sampled_from(
    ["never", "all", "any", "10m", "16Gi", "-1s", "1e9d", "${X}", "0", "hdfs://x/y", "~", "no", ""]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 30_000),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    words,
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
labels = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
durations = st.integers(1, 10**12)
counts = st.integers(0, 1_000)


def altered(document: object, data: st.DataObject) -> object:
    """Return the document with a few of its values replaced, removed or joined by others."""
    root = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        holders = [root, *_holders(root)]
        holder = data.draw(st.sampled_from(holders))
        if isinstance(holder, dict):
            known = st.sampled_from(sorted(holder)) if holder else keys
            key = data.draw(known | keys)
            if data.draw(st.booleans()):
                holder[key] = data.draw(values)
            else:
                holder.pop(key, None)
        elif isinstance(holder, list):
            holder.insert(0, data.draw(values))
    return root


def _holders(value: object) -> list[object]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    holders = [one for one in inner if isinstance(one, dict | list)]
    return [*holders, *(deeper for one in holders for deeper in _holders(one))]


def check_error(error: PrimusdError) -> None:
    """Hold an error to one line that a terminal can show."""
    assert error.message.isprintable()
    assert all(problem.sentence().isprintable() for problem in error.errors)


def check(document: object) -> None:
    """Parse a document; what is right must be a fixed point, what is wrong must be said."""
    try:
        parsed = parse_document(document, context=CONTEXT)
    except PrimusdError as error:
        check_error(error)
        return
    assert parse_document(render(parsed.spec)).spec == parsed.spec
    assert parse(to_yaml(parsed.spec).encode()).spec == parsed.spec
    json.dumps(plan(parsed.spec, parsed.origins), allow_nan=False)
    assert len(parsed.origins) == len(list(leaves(render(parsed.spec))))


@given(st.sampled_from(DOCUMENTS), st.data())
def test_an_altered_job_file_is_a_spec_or_an_error_c34(
    document: object, data: st.DataObject
) -> None:
    check(altered(document, data))


@pytest.mark.soak
@settings(max_examples=100_000)
@given(st.sampled_from(DOCUMENTS), st.data())
def test_a_hundred_thousand_altered_job_files_c34(document: object, data: st.DataObject) -> None:
    check(altered(document, data))


@given(values)
def test_any_document_is_a_spec_or_an_error_c34(document: object) -> None:
    check(document)


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode())),
    st.sampled_from(["a.yaml", "a.json", "a.toml", "-"]),
)
def test_any_bytes_are_a_spec_or_an_error_c34(data: bytes, filename: str) -> None:
    with pytest.raises(PrimusdError) as caught:
        parse(data, filename=filename)

    assert caught.value.message.isprintable()


@given(st.sampled_from(OURS), st.data(), st.sampled_from(["a.yaml", "a.json"]))
def test_an_altered_text_is_a_spec_or_an_error_c34(
    document: object, data: st.DataObject, filename: str
) -> None:
    text = write_yaml(document) if filename == "a.yaml" else json.dumps(document, indent=1)
    cut = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.text(alphabet="{}[]:,-&*!|>'\"%@`# \n\t0aé", max_size=3))

    try:
        parse((text[:cut] + junk + text[cut + len(junk) :]).encode(), filename=filename)
    except PrimusdError as error:
        check_error(error)


@given(values)
def test_yaml_that_is_written_reads_back_the_same(value: object) -> None:
    assert read_document(write_yaml({"value": value}).encode(), filename="a").root == {
        "value": value
    }


@given(st.text(), st.text())
def test_any_text_is_written_as_yaml_that_reads_back_the_same(key: str, text: str) -> None:
    document = {key: [text, {key: text}], "more": {key: text}}

    assert read_document(write_yaml(document).encode(), filename="a").root == document


@st.composite
def budgets(draw: st.DrawFn) -> Budgets:
    return Budgets(draw(counts), draw(counts), draw(durations))


@st.composite
def roles(draw: st.DrawFn, name: str, streams: list[str], *, has_files: bool) -> RoleSpec:
    replicas = draw(st.integers(1, 100))
    ports = tuple(draw(st.lists(labels, unique=True, max_size=3)))
    probes = [Ready("sdk"), Ready("file", "dir/ready"), *(Ready("port", port) for port in ports)]
    delay_ms = draw(st.integers(0, 10**9))
    readings = tuple(
        Reading(stream, own_pass=draw(st.booleans()))
        for stream in draw(
            st.lists(st.sampled_from(streams), unique=True) if streams else st.just([])
        )
    )
    arguments = st.text(min_size=1).filter(lambda text: "\0" not in text)
    lines = arguments.filter(lambda text: bool(text.strip()))
    kind = draw(st.sampled_from(["all", "any", "never", "percent"]))
    return RoleSpec(
        name=name,
        replicas=replicas,
        minimum=replicas,
        command=draw(lines | st.lists(arguments, min_size=1, max_size=3).map(tuple)),
        resources=Resources(draw(st.integers(0, 10**8)), draw(st.integers(0, 2**50)), draw(counts)),
        env=draw(
            st.dictionaries(
                arguments.filter(lambda name: "=" not in name and not name.startswith("PRIMUS_")),
                st.text().filter(lambda text: "\0" not in text),
                max_size=3,
            )
        ),
        workdir="" if has_files else draw(st.sampled_from(["", "/data/x y"])),
        ports=ports,
        ready=draw(st.none() | st.sampled_from(probes)),
        data=readings,
        success=Success(kind, draw(st.integers(1, 100)) if kind == "percent" else 100),
        drain_ms=draw(counts),
        restart=Restart(
            draw(st.sampled_from(["replica", "role", "job"])), delay_ms, delay_ms + draw(counts)
        ),
        budgets=draw(st.none() | budgets()),
        stop=Stop(draw(st.sampled_from(["TERM", "USR1"])), draw(st.integers(0, 86_400_000))),
    )


@st.composite
def stream_specs(draw: st.DrawFn, name: str) -> StreamSpec:
    form = draw(st.sampled_from(["text", "parquet"]))
    is_text = form == "text"
    sizes = st.integers(1, 2**40)
    sources = st.sampled_from([Source("/a/*"), Source("/b c/")])
    splits = st.just(Split()) | sizes.map(lambda size: Split(byte_count=size))
    return StreamSpec(
        name=name,
        sources=tuple(draw(st.lists(sources, min_size=1, max_size=3))),
        format=form,
        columns=() if is_text else tuple(draw(st.lists(labels, unique=True, max_size=3))),
        split=draw(splits if is_text else splits | sizes.map(lambda rows: Split(rows=rows))),
        epochs=draw(st.integers(1, 9)),
        leftover=draw(st.sampled_from(["fail", "allow"])),
        on_bad=draw(st.sampled_from(["fail", "skipRecord", "deadLetter"])),
        bad_rows=draw(st.integers(-1, 9)),
        window_ms=draw(durations),
    )


@st.composite
def job_specs(draw: st.DrawFn) -> JobSpec:
    files = tuple(
        ShippedSpec(path, draw(st.sampled_from(["", f"sha256:{'0' * 64}"])), draw(counts), mode)
        for path in draw(st.lists(labels, unique=True, max_size=2))
        for mode in [draw(st.integers(0, 0o777))]
    )
    streams = draw(st.lists(labels, unique=True, max_size=2))
    names = draw(st.lists(labels, unique=True, min_size=1, max_size=3))
    found = {name: draw(roles(name, streams, has_files=bool(files))) for name in names}
    if all(role.success.kind == "never" for role in found.values()):
        found |= {"voter": RoleSpec("voter", 1, 1, "true")}
    return JobSpec(
        name=draw(labels),
        roles=found,
        namespace=draw(labels),
        labels=draw(
            st.dictionaries(st.text(min_size=1, max_size=9), st.just("a b"), max_size=2).filter(
                lambda pairs: not any("\0" in key for key in pairs)
            )
        ),
        priority=draw(st.integers(0, 100)),
        gang_roles=draw(st.sampled_from([(), (names[0],)])),
        place_timeout_ms=draw(durations),
        ready_timeout_ms=draw(durations),
        replace_after_ms=draw(st.integers(-1, 10**9)),
        files=files,
        data={name: draw(stream_specs(name)) for name in streams},
        budgets=draw(budgets()),
        deadline_ms=draw(counts),
        original=draw(st.booleans()),
    )


@given(job_specs())
def test_what_is_shown_of_a_spec_parses_to_the_same_spec_c34(spec: JobSpec) -> None:
    assert parse_document(render(spec)).spec == spec
    assert parse(to_yaml(spec).encode()).spec == spec
    assert parse(json.dumps({"kind": "Job", "spec": render(spec)}).encode()).spec == spec


@given(job_specs(), values)
def test_any_patch_gives_a_spec_or_an_error_c34(spec: JobSpec, patch: object) -> None:
    try:
        parsed = apply_patch(spec, patch)
    except PrimusdError:
        return
    assert (parsed.spec.name, parsed.spec.files) == (spec.name, spec.files)
