"""Style that no linter checks: sizes, purity, dead modules, and what must not be committed."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PRODUCT = ("primusd", "primus")
PROGRAMS = ("examples", "bench")

IMPURE_CALLS = {"open", "print", "input"}

# Each third-party client is known to one module, or to a folder.
CLIENTS: Mapping[str, str | tuple[str, ...]] = {
    "etcd3": "primusd/state/etcd",
    "grpc": "primusd/state/etcd",
    # The second one has the words of a question that the client lacks.
    "aiokafka": ("primusd/datafeed/sources/kafka.py", "primusd/datafeed/sources/topic_ids.py"),
    "kubernetes_asyncio": "primusd/launchers/kubernetes",
    "fsspec": "primusd/datafeed/storage/bridge.py",
    "hdfs_native": "primusd/datafeed/storage/hdfs.py",
    "optuna": "primusd/tuning",
}

# Started by name, not imported.
ENTRY_POINTS = {
    "primusd.__main__",
    "primusd.ctl.main",
    "primusd.gateway.__main__",
    "primusd.testing",
}
# What tests hold after each step.
INVARIANTS = {"primusd.job.invariants", "primusd.datafeed.ledger.invariants"}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def contract(name: str) -> dict[str, list[str]]:
    """Return a contract of import-linter, which has the only list of layers and pure modules."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(found for found in contracts if found["name"] == name)


def pure_files() -> list[Path]:
    """Return the modules that are pure: same events in, same state and plan out."""
    modules = contract("The core knows no clock, no randomness, no IO")["source_modules"]
    return [
        path
        for path in python_files("primusd")
        if any(f"{module_name(path)}.".startswith(f"{module}.") for module in modules)
    ]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def is_within(path: Path, places: tuple[str, ...]) -> bool:
    name = name_of(path)
    return any(name == place or name.startswith(f"{place}/") for place in places)


def committed() -> list[Path]:
    """Return the files of the repository; those that git ignores are nobody's concern."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_no_module_is_over_500_lines() -> None:
    long = {
        name_of(path): lines
        for path in python_files(*PRODUCT, *PROGRAMS)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MODULE_LINES_MAX
    }

    assert long == {}


def test_no_function_is_over_60_lines() -> None:
    long = {}
    for path in python_files(*PRODUCT, *PROGRAMS):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{name_of(path)}:{node.lineno} {node.name}"] = lines

    assert long == {}


def test_every_module_says_what_its_one_idea_is() -> None:
    silent = [
        name_of(path)
        for path in python_files(*PRODUCT)
        if path.read_text(encoding="utf-8").strip() and ast.get_docstring(tree_of(path)) is None
    ]

    assert silent == []


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils.py", "helpers.py", "common.py", "manager.py", "misc.py"}

    assert [name_of(path) for path in python_files(*PRODUCT) if path.name in vague] == []


def impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a pure module must not contain."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "async"
        elif isinstance(node, ast.Global):
            yield node.lineno, "global state"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPURE_CALLS:
            yield node.lineno, ast.unparse(node.func)
        elif isinstance(node, ast.FunctionDef):
            defaults = (*node.args.defaults, *node.args.kw_defaults)
            if any(isinstance(default, ast.List | ast.Dict | ast.Set) for default in defaults):
                yield node.lineno, "mutable default"
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(
            statement.value, ast.List | ast.Dict | ast.Set
        ):
            name = ast.unparse(statement.targets[0])
            if name != "__all__" and not name.lstrip("_").isupper():
                yield statement.lineno, f"mutable {name}"


def test_the_core_has_no_await_no_global_and_no_mutable_default() -> None:
    found = [
        f"{name_of(path)}:{line} {what}"
        for path in pure_files()
        for line, what in impurities(tree_of(path))
    ]

    assert found == []


def test_values_of_the_core_hold_nothing_that_can_change() -> None:
    """Fields of Structs are tuples, frozensets and Mappings, never list, dict or set."""
    mutable = re.compile(r"\b(list|dict|set|bytearray|defaultdict|deque)\b")
    found = []
    for path in pure_files():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            if "Struct" not in {ast.unparse(base).rpartition(".")[2] for base in node.bases}:
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and mutable.search(
                    ast.unparse(field.annotation)
                ):
                    found.append(f"{name_of(path)}:{field.lineno} {ast.unparse(field)}")  # noqa: PERF401  a comprehension of four levels reads worse

    assert found == []


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and full name of everything imported anywhere in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def test_each_third_party_client_is_imported_by_its_module_only() -> None:
    found = []
    for path in python_files(*PRODUCT):
        for line, name in imported(tree_of(path)):
            home = CLIENTS.get(name.partition(".")[0])
            homes = (home,) if isinstance(home, str) else home
            if homes is not None and not is_within(path, homes):
                found.append(f"{name_of(path)}:{line} {name}")

    assert found == []


def test_every_module_is_imported_by_another() -> None:
    """A module that nothing imports is dead, unless it is started by name."""
    known: set[str] = set()
    for path in python_files(*PRODUCT):
        module = module_name(path)
        known |= {name for _, name in imported(tree_of(path)) if name != module}
    dead = [
        module
        for path in python_files("primusd")
        if path.name != "__init__.py"
        and (module := module_name(path)) not in known
        and module not in ENTRY_POINTS | INVARIANTS
    ]

    assert dead == []


def module_name(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_every_module_stands_in_a_layer() -> None:
    """The contract of import-linter says nothing of a module that it does not name."""
    layers = contract("Imports point down")["layers"]
    named = {part for layer in layers for part in re.findall(r"[a-z_][a-z_.]*", layer)}
    homeless = []
    for path in python_files("primusd"):
        name = module_name(path).removeprefix("primusd").removeprefix(".")
        parts = name.split(".")
        known = any(".".join(parts[:length]) in named for length in range(1, len(parts) + 1))
        if path.name != "__init__.py" and not known:
            homeless.append(name)

    assert homeless == []


def test_exceptions_end_in_error() -> None:
    found = []
    for path in python_files(*PRODUCT):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                is_exception = any(base.endswith(("Error", "Exception")) for base in bases)
                if is_exception and not node.name.endswith("Error"):
                    found.append(f"{name_of(path)}:{node.lineno} {node.name}")

    assert found == []


def test_what_is_left_to_do_names_an_issue() -> None:
    """`TODO(#12): …` can be found and closed; a bare one is forgotten."""
    bare = re.compile(r"#.*\b(FIXME|XXX|HACK|TODO(?!\(#[0-9]+\)))\b")
    found = [
        f"{name_of(path)}:{number}"
        for path in python_files(*PRODUCT, *PROGRAMS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bare.search(line)
    ]

    assert found == []


def test_nothing_committed_names_the_machine_or_the_tools_it_was_written_with() -> None:
    # In pieces, so that this list does not find itself.
    words = [
        "/work" + r"/(main|shared|\.library)",
        r"\.\./" + "shared",
        "/tmp" + "/lab",
        "sub" + "agent",
        "Clau" + "de",
        "Anthro" + "pic",
    ]
    pattern = re.compile("|".join(words))
    found = []
    for path in committed():
        if not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name_of(path)}:{number} {line.strip()[:80]}")

    assert found == []


def test_tests_have_names_of_their_own() -> None:
    """`importmode=importlib` and mypy both tell them apart by name alone."""
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]

    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_test_sleeps_for_a_second() -> None:
    """What a test waits for is an event; a program that it starts may sleep to be killed."""
    sleeping = re.compile(r"(\w+\.)?sleep\([1-9][0-9.]*\)")
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files("tests")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and sleeping.fullmatch(ast.unparse(node))
    ]

    assert found == []
