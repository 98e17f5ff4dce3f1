"""Rules for the whole repository: layers, generated files, forbidden words."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import committerd

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    *(".ci", "bench", "committerd", "deploy", "docs", "examples", "harness", "helm"),
    *("producers", "protos", "requirements", "scripts", "tests"),
)
DATA = (ROOT / "tests" / "conformance" / "cases", ROOT / "tests" / "lance" / "format" / "golden")

POSITIONAL_MAX = 4
FIXED_BY_OTHERS = frozenset({"settings_customise_sources", "redirect_request"})
"""Functions whose parameters a library prescribes (pydantic-settings, urllib)."""

LOG_CALL = re.compile(r"_?log(ger)?\.(debug|info|warning|error|exception|critical)")

MADE_EMPTY = re.compile(r"^(\w+\.)?(set|dict|list|deque|defaultdict|Counter|OrderedDict|Weak\w+)(\[.*\])?$")
STATE_OF_THE_PROCESS = {
    "producers/committerd_client/errors.py: _COMBINED",
    "producers/committerd_client/channel.py: _channels",
    "producers/committerd_client/channel.py: _left_to_parent",
    "producers/committerd_client/kafka_log.py: _threads",
    "producers/committerd_client/sync.py: _clients",
    "producers/committerd_login/client_credentials.py: _providers",
}

PRODUCERS = {
    "committerd_common": {"exceptiongroup", "google", "numpy", "pyarrow", "pyroaring", "typing_extensions"},
    "committerd_login": {"kafka"},
    "committerd_client": {"anyio", "kafka", "lance", "numpy", "opentelemetry", "pyarrow", "pyroaring"},
    "committerd_batch": {"lance", "pyarrow"},
    "committerd_spark": {"lance", "pyarrow", "pyspark"},
    "committerd_ingest": {"aiohttp", "fastavro", "google", "kafka", "lance", "pyarrow", "pytest"},
    "committerd_ray": {"pyarrow", "ray"},
    "committerd_daft": {"daft", "pyarrow"},
}
"""What each package of the client's distribution imports of others. All of it is in producers/pyproject.toml, except
for aiohttp, fastavro and pytest: committerd, of which `committerd ingest` is a command, has them in its own."""

FORBIDDEN = {
    "work left undone": r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK|raise NotImplemented[E]rror)\b",
    "a merge that was not finished": r"^(<{7}|>{7}) ",
    "a banner line": r"^\s*#\s*[-=*#]{5,}",
    "a path of one machine": r"(?<![\w.}/])/(home|root|work|Users)/[a-z]",
    "a source that readers can't follow": r"\bLF \d|\.{2}/shared\b",
    "the host of a package registry": r"pypi\.org|pythonhosted\.org|repo1?\.maven|proxy\.golang\.|registry\.npm",
}


def texts() -> Iterator[tuple[str, str]]:
    """Every file that people write, with its path from the root."""
    files = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in ("", ".md", ".toml")]
    files = [path for path in files if path.name != ".git"]  # written by git in a worktree
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(files):
        if "__pycache__" in path.parts or "_pb2" in path.name or any(data in path.parents for data in DATA):
            continue
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def sources() -> dict[str, str]:
    return {path: text for path, text in texts() if path.endswith(".py")}


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_files_that_are_checked_are_found() -> None:
    paths = {path for path, _ in texts()}
    assert {"Makefile", "pyproject.toml", "committerd/stores/port.py", ".ci/run", "protos/lance/table.proto"} <= paths


def test_after_four_parameters_the_rest_have_names() -> None:
    too_many = [
        f"{path}:{function.lineno} {function.name}"
        for path, text in sources().items()
        if not path.startswith("tests/")  # pytest passes fixtures by name
        for function in functions(text)
        if positional(function) > POSITIONAL_MAX and function.name not in FIXED_BY_OTHERS
    ]
    assert not too_many


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters that a caller may pass without a name; click passes a command's parameters by name."""
    if any(re.search(r"\bclick\.|\.command\b", ast.unparse(decorator)) for decorator in function.decorator_list):
        return 0
    arguments = [*function.args.posonlyargs, *function.args.args]
    return len([argument for argument in arguments if argument.arg not in ("self", "cls")])


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_is_left_that_must_not_stay(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts()
        if path != "LICENSE"
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("work left undone", "# TO" + "DO: later"),
        ("a merge that was not finished", "<" * 7 + " HEAD"),
        ("a banner line", "# " + "-" * 20),
        ("a path of one machine", "see /ho" + "me/me/notes"),
        ("a source that readers can't follow", "as in LF" + " 7.2"),
        ("the host of a package registry", "https://pyp" + "i.org/simple"),
    ],
)
def test_what_must_not_stay_would_be_found(what: str, line: str) -> None:
    assert re.search(FORBIDDEN[what], line)


def test_the_event_of_a_log_line_is_a_fixed_text_and_data_goes_beside_it() -> None:
    calls = [
        (f"{path}:{node.lineno}", node)
        for path, text in sources().items()
        if path.startswith("committerd/")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and LOG_CALL.fullmatch(ast.unparse(node.func))
    ]
    assert calls
    assert not [where for where, call in calls if not has_fixed_event(call)]


def has_fixed_event(call: ast.Call) -> bool:
    if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
        return False
    return "%" not in str(call.args[0].value)


def module_state(path: str, text: str) -> Iterator[str]:
    """The names in a module that hold a container which starts empty, so that the program fills it later."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
        empty = (isinstance(value, ast.List) and not value.elts) or (isinstance(value, ast.Dict) and not value.keys)
        if empty or (isinstance(value, ast.Call) and not value.args and MADE_EMPTY.search(ast.unparse(value.func))):
            yield from (f"{path}: {ast.unparse(target)}" for target in targets)


def test_modules_hold_no_state_but_what_belongs_to_the_whole_process() -> None:
    """The exceptions are registries for handlers that Python calls after a fork and at exit, for a log filter, and the
    classes that are made of one of ours and one of pylance's.
    """
    found = {
        name
        for path, text in sources().items()
        if path.startswith(("committerd/", "producers/"))
        for name in module_state(path, text)
    }
    assert found == STATE_OF_THE_PROCESS


def test_module_state_would_be_found() -> None:
    text = "a = {}\nb: list[int] = []\nc = WeakSet()\nd = set[str]()\ne = {1: 2}\nf = frozenset()\ng = tuple()\nh = [1]"
    assert list(module_state("m.py", text)) == ["m.py: a", "m.py: b", "m.py: c", "m.py: d"]


def test_the_layers_hold() -> None:
    check(Path(sys.executable).with_name("lint-imports"), "--no-cache")


def test_producers_import_nothing_but_what_their_packages_bring() -> None:
    """An allow-list, because import-linter has none. A package imports the others' modules only as the layers say."""
    imports = grimp.build_graph(*PRODUCERS, include_external_packages=True)
    found: dict[str, set[str]] = {name: set() for name in PRODUCERS}
    for module in imports.modules:
        name = module.partition(".")[0]
        if name in PRODUCERS:
            found[name] |= {one.partition(".")[0] for one in imports.find_modules_directly_imported_by(module)}
    known = {*PRODUCERS, *sys.stdlib_module_names}
    assert {name: some - known for name, some in found.items()} == PRODUCERS


def test_generated_files_are_those_of_their_sources() -> None:
    check(sys.executable, "-m", "scripts.generate", "--check")


def check(*command: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_links_the_metrics() -> None:
    assert "docs/metrics.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_license_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == committerd.__version__
    assert f"[{committerd.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_of_a_release_is_read_in_five_minutes() -> None:
    _, *sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [section.split()[0] for section in sections][:2] == ["[Unreleased]", f"[{committerd.__version__}]"]
    for section in sections:
        assert len(section.split()) <= 1500, section.splitlines()[0]
        for entry in re.split(r"^- ", section, flags=re.MULTILINE)[1:]:
            assert len(entry.split("\n\n")[0].splitlines()) <= 3, f"say it in two lines, and link to a page: {entry}"


def test_every_requirement_has_an_exact_version_that_fits() -> None:
    committer, client = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in ("", "producers")
    )
    wanted = [*client["build-system"]["requires"], *client["project"]["dependencies"]]
    wanted += [*committer["build-system"]["requires"], *committer["project"]["dependencies"]]
    wanted += client["project"]["optional-dependencies"]["lance"]
    wanted += committer["project"]["optional-dependencies"]["dev"]
    for group in committer["dependency-groups"].values():
        wanted += [entry for entry in group if isinstance(entry, str)]
    lines = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    exact = dict(line.split("==") for line in lines if not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in exact.items()}
    assert len(wanted) > 20
    for requirement in map(Requirement, wanted):
        ours = requirement.name == client["project"]["name"]
        if ours or (requirement.marker is not None and not requirement.marker.evaluate()):
            continue
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_make_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    done = subprocess.run(["make"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert re.findall(r"^  make ([\w-]+) +\w", done.stdout, re.MULTILINE) == phony[1].split()
