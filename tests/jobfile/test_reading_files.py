"""What no spelling of a job file may be, and where in the file a mistake stands (C34)."""

import pytest

from primusd.errors import MalformedError, PrimusdError, SpecError, TooLargeError
from primusd.jobfile import parse, parse_document, read_document
from primusd.jobfile.document import FILE_BYTES_MAX, VALUES_MAX


def test_a_file_of_ten_megabytes_is_refused_unread() -> None:
    with pytest.raises(TooLargeError) as caught:
        parse(b"a: 1\n" * 2_100_000, filename="big.yaml")

    assert caught.value.message == "big.yaml has 10.0 MiB, a job file at most 4 MiB"
    assert caught.value.status == 413


def test_a_file_of_exactly_the_limit_is_read() -> None:
    head = b"name: x\nroles: {a: {command: 'true'}}\n#"

    parsed = parse(head + b"x" * (FILE_BYTES_MAX - len(head)))

    assert parsed.spec.name == "x"


@pytest.mark.parametrize("name", ["many.yaml", "many.json", "many.toml"])
def test_more_values_than_a_job_file_can_need_are_refused(name: str) -> None:
    listed = b"[" + b"1," * VALUES_MAX + b"1]"
    data = b"a = " + listed if name.endswith("toml") else b'{"a": ' + listed + b"}"

    with pytest.raises(TooLargeError):
        parse(data, filename=name)


@pytest.mark.parametrize("name", ["deep.yaml", "deep.json", "deep.toml"])
def test_deep_nesting_is_refused_however_it_is_spelled(name: str) -> None:
    listed = b"[" * 100_000 + b"]" * 100_000
    data = b"a = " + listed if name.endswith("toml") else b'{"a": ' + listed + b"}"

    with pytest.raises(MalformedError):
        parse(data, filename=name)


def test_a_decoded_document_is_held_to_the_same_bounds() -> None:
    deep: object = "x"
    for _ in range(1_000):
        deep = [deep]

    with pytest.raises(MalformedError):
        parse_document({"name": deep})
    with pytest.raises(MalformedError):
        parse_document({"name": float("nan")})
    with pytest.raises(MalformedError):
        parse_document({1: "x"})


def test_the_three_spellings_of_a_job_give_one_spec() -> None:
    yaml = b"name: x\nroles: {a: {command: [echo, hi], replicas: 2}}"
    json = b'{"name": "x", "roles": {"a": {"command": ["echo", "hi"], "replicas": 2}}}'
    toml = b'name = "x"\n[roles.a]\ncommand = ["echo", "hi"]\nreplicas = 2\n'

    specs = [
        parse(data, filename=name).spec
        for data, name in ((yaml, "a.yaml"), (json, "a.json"), (toml, "a.toml"), (json, "-"))
    ]

    assert all(spec == specs[0] for spec in specs)


def test_json_with_tabs_is_read_as_json_whatever_its_name() -> None:
    parsed = parse(b'{\n\t"name":\t"x", "roles": {"a": {"command": "true"}}}', filename="job")

    assert parsed.spec.name == "x"


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read_document(b"\xef\xbb\xbfname: x", filename="a").root == {"name": "x"}


def test_an_alias_is_the_value_it_stands_for_and_errors_name_the_value_s_place() -> None:
    data = b"name: x\nroles:\n  a: &role {command: 'true', ports: main}\n  b: *role\n"

    with pytest.raises(SpecError) as caught:
        parse(data, filename="a.yaml")

    assert [(one.path, one.at) for one in caught.value.errors] == [
        ("roles.a.ports", "a.yaml:3:37"),
        ("roles.b.ports", "a.yaml:3:37"),
    ]


def test_errors_come_in_the_order_of_their_lines_and_their_number_is_bounded() -> None:
    lines = b"".join(b"wrong%d: 1\n" % number for number in range(1_000))

    with pytest.raises(SpecError) as caught:
        parse(b"name: x\nroles: {a: {command: x}}\n" + lines, filename="a.yaml")

    assert caught.value.message.startswith("a.yaml has 1000 errors: a.yaml:3:1: wrong0: ")
    assert len(caught.value.errors) == 100
    assert caught.value.errors[99].at == "a.yaml:102:1"


def test_a_job_document_names_places_in_the_file_it_came_in() -> None:
    data = b'{"kind": "Job",\n "spec": {"name": "x",\n  "roles": {"a": {"comand": "x"}}}}'

    with pytest.raises(SpecError) as caught:
        parse(data, filename="got.json")

    assert caught.value.errors[-1].path == "roles.a.comand"
    assert caught.value.errors[-1].at == "got.json:3:19"


def test_origins_travel_with_a_job_document() -> None:
    first = parse(b"name: x\ndefaults: {resources: {cpu: 1}}\nroles: {a: {command: x}}")

    document = {"kind": "Job", "spec": {"name": "x", "roles": {"a": {"command": "x"}}}}
    again = parse_document({**document, "origins": dict(first.origins)})

    assert again.origins == first.origins
    assert again.origins["roles.a.resources.cpu"] == "defaults"


@pytest.mark.parametrize("junk", [b"\x00" * 10, b"\xff\xfe\x00", b"", b"\n\n", b"\x80abc"])
def test_junk_is_refused_in_one_sentence(junk: bytes) -> None:
    with pytest.raises(PrimusdError) as caught:
        parse(junk, filename="junk.yaml")

    assert caught.value.message.startswith("junk.yaml")
    assert "\n" not in caught.value.message
