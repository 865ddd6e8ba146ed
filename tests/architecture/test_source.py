"""What must hold for the source as a whole."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import isthmus

SOURCE = Path(isthmus.__file__).parent
ROOT = SOURCE.parent.parent
MODULES = {
    ".".join(("isthmus", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8"), str(path)) for name, path in MODULES.items()}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

DECISIONS = (
    "isthmus.meeting",
    "isthmus.roster",
    "isthmus.schedule",
    "isthmus.wire",
    "isthmus.session.core",
    "isthmus.session.company",
    "isthmus.session.trade",
    "isthmus.session.mesh",
    "isthmus.session.memory",
    "isthmus.session.orders",
)
EFFECTS = {"random", "secrets", "select", "socket", "subprocess", "threading", "time", "torch"}
WITHOUT_TORCH = ("isthmus", "isthmus.transport", "isthmus.transport.agent", "isthmus.roster", "isthmus.cli.main")


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that a tree imports, deferred ones too; a name from a package may be a module of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def strings(tree: ast.AST) -> Iterator[str]:
    """Every string of a tree that is not a docstring or another bare expression."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def part_of(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


@pytest.mark.slow
def test_imports_point_down_only():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_fit_on_a_few_screens():
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}


def test_functions_fit_on_a_screen():
    long = {}
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    long[f"{name}.{node.name}"] = count
    assert long == {}


def test_decisions_know_no_tensor_no_socket_no_thread_no_clock_and_no_chance():
    found = {
        name: sorted({module.split(".")[0] for module in imported(tree)} & EFFECTS)
        for name, tree in TREES.items()
        if any(part_of(name, room) for room in DECISIONS)
    }
    assert len(found) >= len(DECISIONS)
    assert {name: effects for name, effects in found.items() if effects} == {}


@pytest.mark.slow
@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_what_must_start_quickly_does_not_load_torch(module: str):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_unpickles():
    forbidden = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve")
    found = {name: sorted({m for m in imported(tree) if m.split(".")[0] in forbidden}) for name, tree in TREES.items()}
    assert {name: modules for name, modules in found.items() if modules} == {}
    loads = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save", "torch.serialization")
        )
        or (isinstance(node, ast.keyword) and node.arg in ("weights_only", "allow_pickle"))
    ]
    assert loads == []


def test_files_are_replaced_in_one_place_which_takes_many_writers_at_once():
    calls = [
        (name, node)
        for name, tree in TREES.items()
        if name != "isthmus.files"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    of_os = [name for name, node in calls if ast.unparse(node.func) in ("os.replace", "os.rename", "shutil.move")]
    of_path = [
        name
        for name, node in calls
        if node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords
    ]
    assert of_os + of_path == []


def test_no_device_is_named():
    found = {name: [text for text in strings(tree) if "cuda" in text.lower()] for name, tree in TREES.items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_public_modules_can_be_told_apart_by_their_docstrings():
    docs = [ast.get_docstring(tree) for tree in TREES.values()]
    assert None not in docs
    assert len(set(docs)) == len(docs)


def test_examples_are_short_and_each_has_a_test_that_runs_it():
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert examples
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "live").glob("test_*.py"))
    for path in examples:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60
        assert path.name in tests
