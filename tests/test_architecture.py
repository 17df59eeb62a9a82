"""The walls of the building: who may import whom, how long things may get, what must not appear."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "specbatch", ROOT / "kernels" / "specbatch_kernels")
CODE = sorted(
    path
    for folder in ("specbatch", "kernels", "sample_data", "benchmarks", "tests", ".ci")
    for path in (ROOT / folder).rglob("*.py")
)
PUBLIC = [
    path for path in CODE if path.is_relative_to(ROOT / "specbatch") or path.is_relative_to(ROOT / "kernels")
]

# From top to bottom; rooms on one line are neighbours. A room imports from lines below its own, and from
# neighbours as long as no two of them end up importing each other.
LAYERS = (
    ("__main__", "cli"),
    ("job",),
    ("bench",),
    ("report",),
    ("engine",),
    ("policy", "draft", "schedule"),
    ("models", "attention", "cache", "ledger"),
    (
        "text",
        "table",
        "sampling",
        "verify",
        "hardware",
        "energy",
        "pages",
        "step",
        "progress",
        "signals",
        "startup",
    ),
    ("work",),
    ("tree", "tensors", "randomness", "config", "settings"),
    ("rows",),
    ("account", "errors", "slo"),
    ("__init__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
MAX_FILE, MAX_FUNCTION, MAX_ARGUMENTS = 300, 50, 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def room_of(path: Path) -> str:
    """``specbatch/table/reader.py`` lives in room ``table``, ``specbatch/rows.py`` in ``rows``."""
    parts = path.relative_to(ROOT / "specbatch").with_suffix("").parts
    return parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Everything in a file's syntax tree."""
    return tuple(ast.walk(tree_of(path)))


@pytest.fixture(scope="module", autouse=True)
def forget_nodes() -> Iterator[None]:
    """A million objects slow the garbage collector down: they are kept for the tests of this file only."""
    yield
    tree_of.cache_clear()
    nodes.cache_clear()


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, inside functions too; relative imports resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *filter(None, [node.module])))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for module in imported_modules(path):
        top, _, rest = module.partition(".")
        if top == "specbatch" and rest:
            room = rest.split(".")[0]
            rooms.add("__init__" if room.startswith("__") else room)
    return rooms - {room_of(path)}


def room_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for path in (ROOT / "specbatch").rglob("*.py"):
        graph.setdefault(room_of(path), set()).update(imported_rooms(path))
    return graph


def functions(path: Path) -> Iterator[Function]:
    for node in nodes(path):
        if isinstance(node, Function):
            yield node


def where(path: Path, node: Function) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def is_command(node: Function) -> bool:
    """Whether a function is a Typer command: its arguments are the flags of the command line."""
    calls = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    return any(isinstance(call, ast.Attribute) and call.attr in ("command", "callback") for call in calls)


def argument_count(node: Function) -> int:
    args = node.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_every_room_has_a_layer() -> None:
    assert not sorted(set(room_graph()) - set(LEVEL)), "give new rooms a place in LAYERS"


def test_no_room_imports_from_a_layer_above() -> None:
    upward = [
        f"{room} imports {other}"
        for room, others in room_graph().items()
        for other in others
        if LEVEL[other] < LEVEL[room]
    ]
    assert not sorted(upward)


def test_no_two_rooms_import_each_other_in_a_circle() -> None:
    graph = room_graph()
    while leaves := {room for room, others in graph.items() if not others & graph.keys()}:
        graph = {room: others for room, others in graph.items() if room not in leaves}
    assert not graph, "these rooms form a circle"


def test_only_text_imports_a_tokenizer() -> None:
    owners = {"tokenizers": "text", "jinja2": "text"}
    strangers = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / "specbatch").rglob("*.py")
        for module in imported_modules(path)
        if owners.get(module.split(".")[0], room_of(path)) != room_of(path)
    ]
    assert not strangers


def test_command_line_and_config_load_neither_torch_nor_transformers() -> None:
    script = (
        "import importlib, pkgutil, sys\n"
        "import specbatch.config, specbatch.cli as cli\n"
        "for module in pkgutil.walk_packages(cli.__path__, 'specbatch.cli.'):\n"
        "    importlib.import_module(module.name)\n"
        "print([name for name in ('torch', 'transformers', 'triton', 'gguf') if name in sys.modules])\n"
    )
    if not (ROOT / "specbatch" / "cli" / "main.py").exists():
        pytest.skip("no command line yet")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_kernels_folder_is_not_a_package() -> None:
    assert (ROOT / "kernels" / "specbatch_kernels" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists(), "kernels is another project's import name"


def test_packages_are_typed() -> None:
    assert all((package / "py.typed").exists() for package in PACKAGES)


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in CODE}
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE}


def test_functions_fit_a_screen() -> None:
    long = [
        where(path, node)
        for path in CODE
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION
    ]
    assert not long


def test_functions_take_few_arguments() -> None:
    code = [
        path for path in CODE if not path.is_relative_to(ROOT / "tests")
    ]  # a property test takes its draws
    many = [
        where(path, node)
        for path in code
        for node in functions(path)
        if argument_count(node) > MAX_ARGUMENTS and not is_command(node)
    ]
    assert not many


def public_definitions(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Public functions and classes of a module, and the public methods of those classes."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def test_modules_and_public_definitions_have_docstrings() -> None:
    trees = {path: tree_of(path) for path in PUBLIC}
    missing = [str(path.relative_to(ROOT)) for path, tree in trees.items() if not ast.get_docstring(tree)]
    for path, tree in trees.items():
        bare = (node.name for node in public_definitions(tree.body) if not ast.get_docstring(node))
        missing += [f"{path.relative_to(ROOT)} {name}" for name in bare]
    assert not missing


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("unfinished work", r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"),
        ("a path of one machine", r"(?<![\w.~])/(?:home|Users|root|work)/"),
        ("a leftover of debugging", r"\b(?:breakpoint\(\)|pdb\.set_trace|import pdb)\b"),
        ("a swallowed error", r"except (?:Base)?Exception(?: as \w+)?:\s*(?:pass|\.\.\.)"),
    ],
)
def test_nothing_contains(what: str, pattern: str) -> None:
    folders = ("specbatch", "kernels", "jobs", "sample_data", "tests", "benchmarks", ".ci")
    texts = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyi", ".c", ".h", ".md", ".toml", "") and path.is_file()
    ]
    texts += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.py")]
    found = [
        str(path.relative_to(ROOT))
        for path in texts
        if path != Path(__file__).resolve() and re.search(pattern, path.read_text("utf-8"))
    ]
    assert not found, f"these files contain {what}"
