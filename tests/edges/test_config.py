"""The configuration: defaults, precedence, bounds, and every fault told at once with its place."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from primusd.config import (
    Changes,
    Config,
    Loaded,
    NotYetConfigError,
    changes,
    check_text,
    load,
    problem_text,
    split_address,
)
from primusd.config.reader import _raise, _Reading
from primusd.config.schema import section_of
from primusd.config.values import SettingError, is_loopback
from primusd.errors import ConfigError
from primusd.toml_places import places_of

USER = 1000
ENVIRON = {"HOME": "/home/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}
DESIGN = Path(__file__).parents[2] / "docs" / "config.md"


def loaded(
    tmp_path: Path,
    text: str = "",
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    file = tmp_path / "primusd.toml"
    file.write_text(text, encoding="utf-8")
    return load(flags or {}, ENVIRON | dict(environ or {}), file, uid=USER)


def faults(tmp_path: Path, text: str, **flags: object) -> list[tuple[str, str]]:
    """Return (place, path) of each fault."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, flags=flags)
    return [(problem.at.rpartition("/")[2], problem.path) for problem in caught.value.errors]


def test_without_any_file_everything_has_its_default() -> None:
    found = load({}, {"HOME": "/nonexistent"}, None, uid=USER)

    assert found.file is None
    assert set(found.origins.values()) == {"default"}
    assert found.config.listen.tcp == "127.0.0.1:8080"
    assert found.config.listen.socket == "/nonexistent/.local/state/primusd/run/primusd.sock"
    assert found.config.store.ack_linger_ms == 0
    assert found.config.member == os.uname().nodename


@pytest.mark.parametrize(
    ("uid", "environ", "flags", "expected"),
    [
        (0, {}, {}, ("/etc/primus", "/var/lib/primusd", "/run/primusd")),
        (
            61234,
            {"STATE_DIRECTORY": "/var/lib/private/primusd:/x", "RUNTIME_DIRECTORY": "/run/p"},
            {},
            ("/etc/primus", "/var/lib/private/primusd", "/run/p"),
        ),
        (
            USER,
            ENVIRON,
            {},
            (
                "/home/ann/.config/primus",
                "/home/ann/.local/state/primusd",
                "/run/user/1000/primusd",
            ),
        ),
        (
            USER,
            {"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"},
            {},
            ("/c/primus", "/s/primusd", "/s/primusd/run"),
        ),
        (
            USER,
            {"HOME": "/h", "XDG_STATE_HOME": "relative"},
            {},
            ("/h/.config/primus", "/h/.local/state/primusd", "/h/.local/state/primusd/run"),
        ),
        (0, {"PRIMUSD_STATE_DIR": "/d"}, {}, ("/etc/primus", "/d", "/run/primusd")),
        (
            0,
            {"PRIMUSD_STATE_DIR": "/d"},
            {"state_dir": "/e", "run_dir": "/r"},
            ("/etc/primus", "/e", "/r"),
        ),
        (0, {}, {"state_dir": "/e", "ephemeral": True}, ("/etc/primus", "/e", "/e/run")),
        (61235, {}, {}, ("/.config/primus", "/.local/state/primusd", "/.local/state/primusd/run")),
    ],
)
def test_directories_follow_who_runs_it(
    uid: int,
    environ: dict[str, str],
    flags: dict[str, object],
    expected: tuple[str, str, str],
) -> None:
    found = load(flags, environ | {"PRIMUSD_CONFIG": os.devnull}, None, uid=uid).directories

    assert (str(found.config), str(found.state), str(found.run)) == expected


def test_flag_goes_before_environment_before_file_before_default(tmp_path: Path) -> None:
    text = '[logs]\nlevel = "warning"\nformat = "json"\n[limits]\nqueue = 7\n'

    found = loaded(
        tmp_path,
        text,
        flags={"log_level": "debug", "log_format": None},
        environ={"PRIMUSD_LOG_LEVEL": "error", "PRIMUSD_LISTEN": ""},
    )

    assert found.config.logs.level == "debug"
    assert found.origins["logs.level"] == "flag --log-level"
    assert found.config.listen.tcp == ""
    assert found.origins["listen.tcp"] == "environment PRIMUSD_LISTEN"
    assert found.config.logs.format == "json"
    assert found.origins["logs.format"].endswith("primusd.toml:3")
    assert found.config.limits.queue == 7
    assert found.origins["limits.jobs_live"] == "default"
    assert found.is_default("limits.jobs_live")
    assert not found.is_default("limits.queue")


def test_all_faults_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """\
cluster = "Not A Label"
tpyo = 1

[listen]
tcp = "8080"
body_max = 16

[store]
snapshot_every = "1ms"
kind = "redis"

[store.etcd]
leader_ttl = "1h"

[launchers.local]
ports = "1-99999"
gpus = -1
cpu = "many"
inherit = ["A", "A"]

[queues.Bad_Name]
[queues.batch]
qouta = {}

[limits]
queue = true
"""

    found = faults(tmp_path, text, log_level="loud")

    assert found == [
        ("primusd.toml:2", "tpyo"),
        ("primusd.toml:1", "cluster"),
        ("primusd.toml:5", "listen.tcp"),
        ("primusd.toml:6", "listen.body_max"),
        ("primusd.toml:10", "store.kind"),
        ("primusd.toml:9", "store.snapshot_every"),
        ("primusd.toml:13", "store.etcd.leader_ttl"),
        ("flag --log-level", "logs.level"),
        ("primusd.toml:26", "limits.queue"),
        ("primusd.toml:18", "launchers.local.cpu"),
        ("primusd.toml:17", "launchers.local.gpus"),
        ("primusd.toml:16", "launchers.local.ports"),
        ("primusd.toml:19", "launchers.local.inherit"),
        ("primusd.toml:21", "queues.Bad_Name"),
        ("primusd.toml:23", "queues.batch.qouta"),
    ]


def test_a_fault_is_told_in_one_line_that_says_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, '[listen]\nbody_max = 16\ntpc = "127.0.0.1:1"\n')

    text = problem_text(caught.value)

    assert text.splitlines()[0] == "error: the configuration has 2 errors; nothing was started"
    assert "primusd.toml:2: listen.body_max is 16, must be a size with a unit" in text
    assert "(16 what?)" in text
    assert "primusd.toml:3: listen.tpc is an unknown setting, known are socket" in text
    assert "(did you mean tcp?)" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"cluster = ", "not TOML"),
        (b"cluster = 'a'\ncluster = 'b'\n", "line 2"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "no UTF-8"),
        (b"\x00\x00", "not TOML"),
        (b"#" * ((1 << 20) + 1), "longer than"),
        (b"a = " + b"[" * 100_000, "not TOML|nested"),
    ],
    ids=["cut", "twice", "binary", "zeros", "long", "nested"],
)
def test_a_file_that_cannot_be_read_as_toml_is_one_clear_sentence(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "primusd.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=said) as caught:
        load({}, ENVIRON, file, uid=USER)

    assert str(file) in caught.value.message
    assert "\n" not in problem_text(caught.value)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.toml"

    with pytest.raises(ConfigError, match="No such file"):
        load({}, ENVIRON, missing, uid=USER)
    with pytest.raises(ConfigError, match="No such file"):
        load({}, ENVIRON | {"PRIMUSD_CONFIG": str(missing)}, None, uid=USER)


def test_the_usual_file_is_found_and_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    environ = ENVIRON | {"XDG_CONFIG_HOME": str(tmp_path)}
    file = tmp_path / "primus" / "primusd.toml"
    file.parent.mkdir()
    file.write_text('cluster = "blue"\n', encoding="utf-8")

    assert load({}, environ, None, uid=USER).config.cluster == "blue"

    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match="directory"):
        load({}, environ, None, uid=USER)


@pytest.mark.parametrize(
    ("text", "flags", "path"),
    [
        ('[secrets]\ndir = "/etc/secrets"\n', {}, "secrets.dir"),
        ('[launchers]\nenabled = ["local", "kubernetes"]\n', {}, "launchers.enabled"),
    ],
)
def test_what_this_build_does_not_have_is_refused_by_name(
    tmp_path: Path, text: str, flags: dict[str, object], path: str
) -> None:
    with pytest.raises(NotYetConfigError) as caught:
        loaded(tmp_path, text, flags=flags)

    assert caught.value.code == "NotYet"
    assert [problem.path for problem in caught.value.errors] == [path]
    assert "not in this build yet" in caught.value.errors[0].hint


def test_settings_of_later_parts_are_checked_already(tmp_path: Path) -> None:
    assert faults(
        tmp_path, "[store.etcd]\nendpoints = []\n[launchers.kubernetes]\nimage = 1\n"
    ) == [
        ("primusd.toml:2", "store.etcd.endpoints"),
        ("primusd.toml:4", "launchers.kubernetes.image"),
    ]


def test_a_listener_beyond_loopback_needs_tls_or_a_loud_word(tmp_path: Path) -> None:
    assert faults(tmp_path, "", listen="0.0.0.0:8080") == [("flag --listen", "listen.tcp")]

    found = loaded(tmp_path, flags={"listen": "0.0.0.0:8080", "insecure": True})
    assert found.config.listen.tcp == "0.0.0.0:8080"
    assert loaded(tmp_path, '[listen]\ntcp = "[::1]:0"\n').config.listen.tcp == "[::1]:0"


def test_settings_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    text = f"""\
[listen]
tls_cert = "{tmp_path}/cert.pem"
client_ca = "relative.pem"
[store.etcd]
quota_warn_percent = 90
"""
    assert ("primusd.toml:3", "listen.client_ca") in faults(tmp_path, text)

    mended = text.replace('client_ca = "relative.pem"\n', "")
    assert faults(tmp_path, mended) == [
        ("primusd.toml:1", "listen.tls_key"),
        ("primusd.toml:4", "store.etcd.quota_warn_percent"),
        ("primusd.toml:2", "listen.tls_cert"),
    ]


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('endpoints = ["h1:etcd"]', "store.etcd.endpoints"),
        ('endpoints = ["https://h1:2379", "h2:2379"]', "store.etcd.endpoints"),
        ('endpoints = ["http://h1:2379"]\nca = "CA"', "store.etcd.endpoints"),
        ('user = "primus"', "store.etcd.password_file"),
        ('key = "CA"', "store.etcd.cert"),
        ('ca = "/no/such/file"', "store.etcd.ca"),
    ],
)
def test_what_contradicts_itself_about_etcd_is_named(tmp_path: Path, line: str, path: str) -> None:
    (tmp_path / "ca.pem").write_text("a certificate")
    text = f"[store.etcd]\n{line}\n".replace("CA", str(tmp_path / "ca.pem"))

    assert path in [one for _, one in faults(tmp_path, text, store="etcd")]
    # Nothing of it counts while the store is another.
    assert loaded(tmp_path, text).config.store.kind == "embedded"


def test_blobs_are_in_a_folder_that_others_reach(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[blobs]\nurl = "file:///shared/blobs"\n')

    assert found.config.blobs.url == "file:///shared/blobs"
    assert ("primusd.toml:2", "blobs.url") in faults(tmp_path, '[blobs]\nurl = "file:blobs"\n')


def test_etcd_is_named_by_a_flag_with_its_endpoints(tmp_path: Path) -> None:
    store = loaded(tmp_path, flags={"store": "etcd://h1,h2:23790"}).config.store

    assert (store.kind, store.etcd.endpoints) == ("etcd", ("h1:2379", "h2:23790"))
    assert store.ack_linger_ms == 100


@pytest.mark.parametrize("named", ["etcd:///x", "etcd://user@h1", "etcd://h1/x", "etcd://h1,h 2"])
def test_an_endpoint_of_etcd_is_a_host_and_a_port(tmp_path: Path, named: str) -> None:
    assert faults(tmp_path, "", store=named) == [("flag --store", "store.etcd.endpoints")]


def test_a_contradiction_is_told_beside_a_wrong_value(tmp_path: Path) -> None:
    assert faults(tmp_path, "", log_level="loud", listen="0.0.0.0:80") == [
        ("flag --log-level", "logs.level"),
        ("flag --listen", "listen.tcp"),
    ]


def test_page_reads_without_token_stay_on_loopback(tmp_path: Path) -> None:
    text = "[auth]\npage_reads_without_token = true\n"

    assert loaded(tmp_path, text).config.auth.page_reads_without_token
    assert faults(tmp_path, text, listen="10.0.0.1:80", insecure=True) == [
        ("primusd.toml:2", "auth.page_reads_without_token")
    ]


def test_a_socket_path_that_does_not_fit_names_the_flag_to_use(tmp_path: Path) -> None:
    fits, too_long = "/" + "s" * 106, "/" + "s" * 107

    assert loaded(tmp_path, flags={"socket": fits}).config.listen.socket == fits
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, flags={"socket": too_long})
    assert "--socket" in caught.value.errors[0].hint
    assert "108" in str(caught.value.errors[0].allowed)


def test_check_text_says_where_each_value_came_from_and_loads_again(tmp_path: Path) -> None:
    text = """\
cluster = "blue"
[launchers.local]
cpu = 2.5
gpus = ["GPU-1", "GPU-2"]
labels = {rack = "a 7"}
memory = "64Gi"
[queues.batch]
"""
    first = loaded(tmp_path, text, flags={"log_level": "debug"})

    shown = check_text(first)

    assert 'level = "debug"' in shown
    assert "# flag --log-level" in shown
    assert "primusd.toml:3" in shown
    again = loaded(tmp_path, shown)
    assert again.config == first.config
    assert changes(first.config, again.config) == Changes((), ())


def test_reload_parts_what_takes_effect_from_what_waits_for_a_restart(tmp_path: Path) -> None:
    old = loaded(tmp_path).config
    text = '[logs]\nlevel = "debug"\nattempt_files = 9\n[limits]\nqueue = 5\n[queues.new]\n'
    new = loaded(tmp_path, text).config

    assert changes(old, new) == Changes(
        live=("logs.level", "limits.queue", "queues"), after_restart=("logs.attempt_files",)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("[::1]:8080", ("::1", 8080)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_addresses_are_taken_apart(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["", "8080", ":80", "h:", "h:70000", "::1:80", "h:-1", "h:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.53", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h1", False)],
)
def test_loopback_is_told_from_the_world(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_lines_are_found_past_comments_long_texts_and_dotted_keys() -> None:
    text = '''\
# a = 1
a.b = 1   # c = 2
"q d" = """
e = 1
"""
[ t . "u" ]
f = [
  "g = 1",
]
'''
    lines = {path: place.line for path, place in places_of(text).items()}
    assert lines == {
        ("a", "b"): 2,
        ("q d",): 3,
        ("t", "u"): 6,
        ("t", "u", "f"): 7,
    }


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(load({}, ENVIRON, Path(os.devnull), uid=USER).origins)), JSONISH)
def test_no_value_of_any_setting_is_more_than_refused(path: str, value: object) -> None:
    """Whatever stands in the file, the answer is a configuration or a ConfigError."""
    table: dict[str, object] = {}
    inner = table
    *tables, key = path.split(".")
    for name in tables:
        inner[name] = following = dict[str, object]()
        inner = following
    inner[key] = value

    reading = read_table(table)

    assert isinstance(reading, Config | ConfigError)


def read_table(table: dict[str, object]) -> Config | ConfigError:
    """Load a table as if it had been the file, without writing TOML."""
    reading = _Reading(None, "", {})
    config = reading.config(table)
    try:
        _raise(reading)
    except ConfigError as error:
        return error
    return config


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    """docs/config.md §3 is TOML; read as a file it is the default configuration."""
    text = DESIGN.read_text(encoding="utf-8").split("```toml\n", 1)[1].split("```", 1)[0]
    documented = tomllib.loads(text)

    loaded_from_docs = read_table(documented)
    assert loaded_from_docs == Config()
    assert missing_keys(Config(), documented, "") == []


def missing_keys(section: Struct, table: Mapping[str, object], prefix: str) -> list[str]:
    """Return the paths of settings that a table does not name."""
    found = section_of(type(section))
    missing = [f"{prefix}{key}" for key in found.keys() if key not in table]  # noqa: SIM118  a method
    for name in found.tables:
        inner = table.get(name, {})
        assert isinstance(inner, dict)
        missing += missing_keys(getattr(section, name), inner, f"{prefix}{name}.")
    return missing


def unread(section: Struct, path: tuple[str, ...], source: str) -> list[str]:
    """Return the settings that no module reads, by the name of their section and their own."""
    found = section_of(type(section))
    names = [
        ".".join((*path, setting.key))
        for setting in found.settings
        if setting.not_yet is None or setting.not_yet.words
        if not re.search(rf"\b{path[-1]}\.{setting.field}\b", source)
    ]
    for name in found.tables:
        names += unread(getattr(section, name), (*path, name), source)
    return names


def test_every_setting_has_an_effect_or_is_refused() -> None:
    """What belongs to a store or a launcher that has to come is refused with its choice."""
    package = Path(__file__).parents[2] / "primusd"
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if package / "config" not in path.parents
    )

    later = ("config.launchers.kubernetes.", "config.launchers.yarn.")
    found = unread(Config(), ("config",), source)

    assert [name for name in found if not name.startswith(later)] == []


def test_defaults_lie_within_their_own_bounds(tmp_path: Path) -> None:
    assert loaded(tmp_path, check_text(load({}, ENVIRON, None, uid=USER))).config == replace(
        load({}, ENVIRON, None, uid=USER).config
    )


def test_reading_creates_nothing(tmp_path: Path) -> None:
    loaded(tmp_path, flags={"state_dir": tmp_path / "state", "run_dir": tmp_path / "run"})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["primusd.toml"]


@pytest.mark.root
def test_a_file_of_another_user_is_told_without_a_traceback(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    file = tmp_path / "primusd.toml"
    file.write_text("", encoding="utf-8")
    file.chmod(0o600)
    tmp_path.chmod(0o755)
    program = (
        "import os, sys; from pathlib import Path; from primusd.config import *\n"
        "from primusd.errors import ConfigError\n"
        # Only now: the interpreter may lie where that user cannot read.
        "os.setgroups([]); os.setresuid(65534, 65534, 65534)\n"
        "try: load({}, {'HOME': '/'}, Path(sys.argv[1]))\n"
        "except ConfigError as error: print(problem_text(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.stdout.startswith("error: cannot read the configuration"), done.stderr
    assert "Permission denied" in done.stdout
