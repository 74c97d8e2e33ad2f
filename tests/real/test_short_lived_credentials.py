"""C81: credentials that expire under a job, at a real NameNode and at real object stores."""

import json
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from msgspec.structs import replace

from primusd.datafeed.formats.base import open_pinned
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError, list_files
from primusd.datafeed.storage import remote, schemes
from primusd.datafeed.storage.base import ReadError
from primusd.datafeed.storage.hadoop_tokens import Token, TokenError, identity_of, token_of
from primusd.job.spec import Source
from tests.contracts.storage_contract import StorageContract
from tests.real.test_hdfs import Folder
from tests.services.gate import Asked, Gate, Refusal, gate_before
from tests.services.hdfs import USER, Hdfs, running_hdfs
from tests.services.stores import AZURE_KEY, Store, running_azure, running_s3
from tests.services.tokens import made_token, token_file

HOUR_MS = 3_600_000
FAR_MS = 7 * 24 * HOUR_MS
ROWS = 6_000
pytestmark = pytest.mark.timeout(600)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """A NameNode that gives tokens out and honours them, with no Kerberos behind it."""
    settings = {"dfs.namenode.delegation.token.always-use": "true"}
    with running_hdfs(tmp_path_factory.mktemp("hdfs"), settings) as running:
        yield running


class Tokens:
    """A file of tokens that its readers are shown."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, *tokens: Token) -> None:
        """Replace the file as `hdfs fetchdt` and most tools do, in one step."""
        part = self.path.with_suffix(".part")
        part.write_bytes(token_file(*tokens))
        part.rename(self.path)


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    monkeypatch.setattr(remote, "CHECK_S", 0.0)
    monkeypatch.setattr(schemes, "_clients", {})
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "tokens"))
    return Tokens(tmp_path / "tokens")


def given_by(hdfs: Hdfs) -> Token:
    """Return a token that the NameNode gave out, for its own protocol."""
    said = json.loads(hdfs.ask("GET", "/", f"GETDELEGATIONTOKEN&renewer={USER}"))
    token = token_of(said["Token"]["urlString"])
    return replace(token, kind="HDFS_DELEGATION_TOKEN", service=hdfs.url.removeprefix("hdfs://"))


def cancel(hdfs: Hdfs, token: Token) -> None:
    hdfs.ask("PUT", "/", f"CANCELDELEGATIONTOKEN&token={token.url_string()}")


def only_unit(url: str, options: dict[str, str] | None = None) -> Unit:
    (unit,) = list_files(Source(url, storage=options or {}), "text")
    return unit


def first_bytes(unit: Unit) -> bytes:
    return open_pinned(unit).pread(0, 4)


def secured(folder: Path) -> dict[str, str]:
    """Return the options of a client that shows a token where it is asked for one."""
    folder.mkdir()
    asks = "<property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{asks}</configuration>")
    return {"confDir": str(folder)}


class TestNativeClientByToken(StorageContract):
    @pytest.fixture
    def place(self, hdfs: Hdfs, tokens: Tokens, tmp_path: Path) -> Folder:
        tokens.put(given_by(hdfs))
        folder = Folder(hdfs, hdfs.url)
        folder.options = secured(tmp_path / "conf")
        return folder


def test_a_real_token_is_shown_until_it_is_cancelled_and_the_next_one_after_that(
    hdfs: Hdfs, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NameNode knows who asks by the token alone; nobody else may read the file."""
    hdfs.put("/mine/a.txt", b"row\n")
    hdfs.ask("PUT", "/mine/a.txt", "SETPERMISSION&permission=600")
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    first, second = given_by(hdfs), given_by(hdfs)
    tokens.put(first)
    options = secured(tmp_path / "conf")
    unit = only_unit(f"{hdfs.url}/mine/a.txt", options)
    assert first_bytes(unit) == b"row\n"

    cancel(hdfs, first)
    monkeypatch.setattr(schemes, "_clients", {})
    with pytest.raises(ReadError) as refused:
        first_bytes(unit)
    with pytest.raises(ListingError) as unlisted:
        only_unit(f"{hdfs.url}/mine/a.txt", options)
    tokens.put(second)

    assert first_bytes(unit) == b"row\n"
    assert (refused.value.kind, unlisted.value.permanent) == ("expired", False)
    text = refused.value.message
    assert f"the HDFS delegation token of {USER} in {tokens.path} was refused before its" in text
    assert "what replaces it there is taken up at once" in text
    assert identity_of(first).expires_ms - identity_of(first).issued_ms == FAR_MS


def test_without_any_token_who_asks_is_refused_and_a_listing_fails_at_once(
    hdfs: Hdfs, tokens: Tokens
) -> None:
    hdfs.put("/mine/b.txt", b"row\n")
    tokens.put()
    with secure_web(hdfs) as gate, pytest.raises(ListingError) as caught:
        only_unit(f"webhdfs://{gate.address}/mine/b.txt")

    assert caught.value.permanent
    assert "401" in caught.value.message
    assert "HADOOP_TOKEN_FILE_LOCATION" in caught.value.hint


@contextmanager
def secure_web(hdfs: Hdfs) -> Iterator[Gate]:
    """Stand before WebHDFS as a cluster with security does: only tokens tell who asks."""
    with gate_before(hdfs.web) as gate:
        gate.judge, gate.rewrite = judged, as_user
        yield gate


def judged(asked: Asked) -> Refusal | None:
    """Return how HDFS refuses who shows no token, or one that is over."""
    shown = parse_qs(urlsplit(asked.target).query).get("delegation", [""])[0]
    if not shown:
        return Refusal(401, b"<h2>HTTP ERROR 401 Authentication required</h2>", "text/html")
    try:
        who = identity_of(token_of(shown))
    except TokenError as error:
        return refused("SecurityException", f"Failed to obtain user group information: {error}")
    if who.expires_ms > now_ms():
        return None
    text = f"token (token for {who.owner}: HDFS_DELEGATION_TOKEN owner={who.owner}) is expired"
    return refused("InvalidToken", text)


def refused(name: str, text: str) -> Refusal:
    kind = f"org.apache.hadoop.security.token.SecretManager${name}"
    said = {"exception": name, "javaClassName": kind, "message": text}
    return Refusal(403, json.dumps({"RemoteException": said}).encode())


def as_user(target: str) -> str:
    parts = urlsplit(target)
    words = {name: value[0] for name, value in parse_qs(parts.query).items()}
    words["user.name"] = identity_of(token_of(words.pop("delegation"))).owner
    return f"{parts.path}?{urlencode(words)}"


def good_token(*, life_ms: int = FAR_MS) -> Token:
    return made_token(now_ms() + life_ms, issued_ms=now_ms(), owner=USER)


class TestWebServiceByToken(StorageContract):
    @pytest.fixture
    def place(self, hdfs: Hdfs, tokens: Tokens) -> Iterator[Folder]:
        tokens.put(good_token())
        with secure_web(hdfs) as gate:
            yield Folder(hdfs, f"webhdfs://{gate.address}")


NUMBERED = """
import os, primus, time
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    for batch in primus.dataset(batch_rows=64):
        out.write("".join(f"{int(line[:9])}\\n" for line in batch["line"]))
        time.sleep(0.1)
"""
JOB = """
name: tired
roles:
  worker:
    replicas: 2
    command: [{python}, {folder}/trainer.py]
    env: {{OUT: "{folder}/out"}}
    data: rows
data:
  rows: {{sources: [{{files: "webhdfs://{address}/tired/*.txt"}}], memory: 8Mi}}
"""


def test_tokens_that_expire_under_a_job_cost_it_time_and_no_row(
    head: Any, hdfs: Hdfs, tokens: Tokens
) -> None:
    """Before it lists, and while it reads: it is said which one, since when, and what to do."""
    for file in range(6):
        rows = (b"%09d %s\n" % (file * 1_000 + n, b"x" * 8_000) for n in range(1_000))
        hdfs.put(f"/tired/{file}.txt", b"".join(rows))
    (head.folder / "out").mkdir()
    (head.folder / "trainer.py").write_text(NUMBERED)
    head.environment["HADOOP_TOKEN_FILE_LOCATION"] = str(tokens.path)
    tokens.put(made_token(now_ms() - 1_000, issued_ms=now_ms() - HOUR_MS))
    with secure_web(hdfs) as gate:
        head.start()
        folder = head.folder
        head.submit(JOB.format(python=sys.executable, folder=folder, address=gate.address))
        head.until("it waits for a token", lambda: "expired at" in explained(head))
        unlisted = explained(head)

        tokens.put(good_token())
        head.until("the first rows", lambda: len(rows_in(folder)) >= 200)
        well = head.document("data", "tired")
        tokens.put(made_token(now_ms() + 1_000, issued_ms=now_ms() - 8 * HOUR_MS))
        head.until("a reader is refused", lambda: '"trouble"' in told(head))
        seen = len(rows_in(folder))
        head.until("it is told", lambda: "CredentialExpires: worker-" in explained(head))
        tired = told(head)

        tokens.put(good_token())
        head.until("it ends", lambda: head.phase("tired") in ("Succeeded", "Failed"), within_s=200)

    assert "why does it wait: WaitingForData" in unlisted
    assert f"the HDFS delegation token of ann in {tokens.path} expired at" in unlisted
    assert "what replaces it there is taken up at once" in unlisted
    assert "notes" not in well["items"][0]
    assert '"CredentialExpired"' in tired
    assert seen < ROWS
    status = head.ended("tired")
    assert (status["phase"], status["verdict"]["reason"]) == ("Succeeded", "Completed")
    assert sorted(rows_in(folder)) == list(range(ROWS))
    proof = head.document("data", "tired", "verify")
    assert (proof["ok"], proof["dead"], proof["skipped"]) == (True, 0, 0)
    assert "credential.nearly_expired" in head.log.read_text()


STAGED = """
name: staged
roles:
  worker:
    command: [sh, -c, "cat; until [ -e {folder}/go ]; do sleep 0.05; done"]
    data: rows
    feed: stdin
data:
  rows: {{sources: [{{files: "{folder}/rows.txt"}}], staging: "webhdfs://{address}/staged"}}
"""


def test_positions_are_kept_once_there_is_a_token_again(
    head: Any, hdfs: Hdfs, tokens: Tokens
) -> None:
    """Given up, the next job would have read all of it again."""
    (head.folder / "rows.txt").write_text("row\n" * 10)
    head.environment["HADOOP_TOKEN_FILE_LOCATION"] = str(tokens.path)
    tokens.put(good_token())
    with secure_web(hdfs) as gate:
        head.start()
        head.submit(STAGED.format(folder=head.folder, address=gate.address))
        head.until("it reads", lambda: "row" in head.ctl("logs", "staged").stdout)
        tokens.put(made_token(now_ms() - 1, issued_ms=1))
        (head.folder / "go").touch()
        status = head.ended("staged")
        head.until("it is said", lambda: "positions.not_kept" in head.log.read_text())
        tokens.put(good_token())
        head.until("positions are kept", lambda: is_kept(hdfs))

    assert status["phase"] == "Succeeded"
    assert "expired at" in head.log.read_text()


def is_kept(hdfs: Hdfs) -> bool:
    try:
        return b"positions.json" in hdfs.ask("GET", "/staged/rows", "LISTSTATUS")
    except urllib.error.HTTPError:
        return False


def explained(head: Any) -> str:
    return str(head.ctl("explain", "tired").stdout)


def told(head: Any) -> str:
    return json.dumps(head.document("data", "tired"))


def rows_in(folder: Path) -> list[int]:
    return [
        int(line)
        for path in (folder / "out").iterdir()
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


# Object stores.

EXPIRED = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)
SHORT = {"x-ms-error-code": "InvalidAuthenticationInfo"}
OLD = (
    b"<Error><Code>InvalidAuthenticationInfo</Code><Message>The token is expired.</Message></Error>"
)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(remote, "CHECK_S", 0.0)
    monkeypatch.setattr(schemes, "_clients", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    return monkeypatch


def filled(store: Store) -> None:
    store.files.create_dir("bucket")
    with store.files.open_output_stream("bucket/a.txt") as file:
        file.write(b"row\n" * 100_000)


def profile(path: Path, session: str, ends: str) -> None:
    path.write_text(
        "[default]\naws_access_key_id = tests\naws_secret_access_key = tests\n"
        f"aws_session_token = {session}\naws_expiration = {ends}\n"
    )


def test_a_session_of_s3_that_expires_is_replaced_in_its_file(
    tmp_path: Path, fresh: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials"
    fresh.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    profile(path, "old", "2026-01-01T00:00:00Z")

    def judge(asked: Asked) -> Refusal | None:
        is_old = asked.headers.get("x-amz-security-token") == "old" and has_expired
        return Refusal(400, EXPIRED, "application/xml") if is_old else None

    has_expired = False
    with running_s3(tmp_path) as store:
        endpoint = store.options["endpoint"].removeprefix("http://")
        filled(store)
        with gate_before(endpoint) as gate:
            gate.judge = judge
            options = {"endpoint": f"http://{gate.address}", "region": "us-east-1"}
            unit = only_unit("s3://bucket/a.txt", options)
            file = open_pinned(unit)
            assert file.pread(0, 4) == b"row\n"

            has_expired = True
            failures = []
            for call in (lambda: file.pread(300_000, 4), lambda: open_pinned(unit)):
                with pytest.raises(ReadError) as caught:
                    call()
                failures.append(caught.value)
            with pytest.raises(ListingError) as unlisted:
                only_unit("s3://bucket/*.txt", options)
            ends = schemes.storage_of("s3://bucket/a.txt", options).credential()
            profile(path, "new", "2027-01-01T00:00:00Z")
            # The client that was refused is given up, and the next one reads the file.
            again = open_pinned(unit).pread(300_000, 4)

    assert again == b"row\n"
    assert [one.kind for one in failures] == ["expired", "expired"]
    text = f"the AWS session of profile default in {path} expired at 2026-01-01 00:00:00Z"
    assert all(text in one.message for one in failures)
    assert not unlisted.value.permanent
    assert ends is not None
    assert ends.expires_ms == 1_767_225_600_000


def test_what_azure_no_longer_knows_is_no_bad_data(
    tmp_path: Path, fresh: pytest.MonkeyPatch
) -> None:
    with running_azure(tmp_path) as store:
        filled(store)
        with gate_before(store.options["endpoint"].removeprefix("http://")) as gate:
            options = {**store.options, "endpoint": f"http://{gate.address}"}
            unit = only_unit(f"{store.url}/a.txt", options)
            gate.judge = lambda _: Refusal(401, OLD, "application/xml", SHORT)
            with pytest.raises(ReadError) as caught:
                open_pinned(unit)
            gate.judge = lambda _: None

            assert first_bytes(unit) == b"row\n"
    assert caught.value.kind in ("expired", "denied")


def test_what_google_no_longer_knows_is_no_bad_data(fresh: pytest.MonkeyPatch) -> None:
    said = {"error": {"code": 401, "message": "Invalid Credentials", "errors": []}}
    unit = Unit("file", "gs://bucket/a.txt", 4, "", {"storage.anonymous": "true"})
    with gate_before("127.0.0.1:1") as gate:
        gate.judge = lambda _: Refusal(401, json.dumps(said).encode())
        unit = replace(unit, options={**unit.options, "storage.endpoint": f"http://{gate.address}"})
        with pytest.raises(ReadError) as caught:
            open_pinned(unit)

    assert caught.value.kind == "denied"
