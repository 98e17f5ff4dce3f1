"""What users see of the client: names, reprs, completion, and types as mypy and pyright check them in programs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import committerd_client
from committerd_client import CommitClient, Staged, SyncCommitClient, staging
from committerd_client.headers import StagedChange
from committerd_common.messages import Transaction

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/client.md", "docs/spark.md", "docs/ray-daft.md", "docs/dev.md", "docs/testing.md")
UNTYPED = ("kafka", "pyarrow", "lance", "pyspark", "pandas", "ray", "daft", "dlt", "airflow", "dagster")
"""Libraries whose types pyright does not know, or knows in part; those from Ray on are not installed here."""
UNTYPED_BASES = ("airflow_append", "dagster_assets", "dlt_destination")
"""Examples that decorate or derive from what these libraries have."""
OTHERS = {"BaseException", "ExceptionGroup", "Overwrite", "ReserveFragments", "Rewrite", "Merge", "Project", "Append"}
"""Capitalised names in docstrings that are not the client's: Python's, and operations of Lance."""


def _documented() -> list[Any]:
    """Everything public: objects of the package, and their public methods."""
    found: list[Any] = [committerd_client, committerd_client.errors]
    for name in committerd_client.__all__:
        one = getattr(committerd_client, name)
        found.append(one)
        if inspect.isclass(one):
            found += [member for title, member in vars(one).items() if not title.startswith("_") and callable(member)]
    return found


def test_everything_that_a_docstring_names_is_exported() -> None:
    named = {
        name for one in _documented() for name in re.findall(r"`([A-Z]+[a-z][A-Za-z]*)[`.(]", inspect.getdoc(one) or "")
    }
    known = {*committerd_client.__all__, *staging.__all__, *OTHERS, *vars(sys.modules["builtins"])}
    assert named <= known, sorted(named - known)


def test_completion_shows_what_is_public_and_nothing_else() -> None:
    assert set(dir(committerd_client)) == {*committerd_client.__all__, "errors", "staging"}
    assert all(hasattr(committerd_client, name) for name in dir(committerd_client))
    calls = {name for name in dir(CommitClient) if not name.startswith("_")}
    assert {name for name in dir(SyncCommitClient) if not name.startswith("_")} == calls - {"aclose"} | {"close"}
    assert calls == {
        "aclose", "add_columns", "alter_columns", "append", "bookmark", "commit", "commit_many", "compact", "create",
        "create_index", "delete", "drop_columns", "merge_insert", "optimize_indices", "overwrite", "restore", "resume",
        "start", "status", "submit", "update", "upsert",
    }  # fmt: skip


def test_the_methods_of_both_clients_have_the_same_arguments_and_documentation() -> None:
    for name in ("append", "upsert", "create_index", "compact"):
        ours, theirs = getattr(SyncCommitClient, name), getattr(CommitClient, name)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert "await" not in ours.__doc__
        assert not inspect.iscoroutinefunction(ours)


def test_reprs_are_one_short_line() -> None:
    transaction = Transaction(uuid="5f0c8f4e-8f4e-4f0c-8f4e-5f0c8f4e5f0c", read_version=7)
    for number in range(1000):
        transaction.append.fragments.add(physical_rows=number)
    assert repr(Staged(transaction=transaction)) == f"<Staged append {transaction.uuid}, read version 7>"
    change = StagedChange(transaction=transaction, inserted=3)
    assert repr(change).endswith(", read version 7, 3 rows inserted, 0 updated, 0 deleted>")
    assert repr(SyncCommitClient("b1:9092,b2:9092", dataset="events")) == (
        "<SyncCommitClient of events at b1:9092, b2:9092, not started>"
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples and the programs on the pages, as files."""
    folder = tmp_path_factory.mktemp("programs")
    for example in (ROOT / "examples").glob("*.py"):
        (folder / example.name).write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
            name = re.sub(r"\W", "_", page.removesuffix(".md"))
            (folder / f"{name}_{number}.py").write_text(block, encoding="utf-8")
    assert len(list(folder.glob("*.py"))) >= 10
    return folder


def test_pyright_accepts_them_strictly(programs: Path) -> None:
    """Types that pyright does not know count only in programs that use none of the libraries without types."""
    config = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "producers")],
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] >= 10
    wrong = [one for one in found["generalDiagnostics"] if not _of_untyped(one)]
    assert not wrong, "\n".join(f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}" for one in wrong)


def _of_untyped(diagnostic: dict[str, Any]) -> bool:
    text = Path(diagnostic["file"]).read_text(encoding="utf-8")
    uses = any(re.search(rf"^(import|from) {name}\b", text, re.MULTILINE) for name in UNTYPED)
    missing = re.match(r'Import "(ray|daft|dlt|airflow|dagster)\b.*" could not be resolved', diagnostic["message"])
    rule = re.match(r"reportUnknown|reportUntyped|reportMissingTypeStubs", diagnostic.get("rule", ""))
    return uses and (missing or rule) is not None


def test_mypy_accepts_them_strictly(programs: Path) -> None:
    config = programs / "mypy.ini"
    ignored = "".join(f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in UNTYPED)
    loose = "disallow_subclassing_any = False\ndisallow_untyped_decorators = False\n"
    ignored += "".join(f"[mypy-{name}]\n{loose}" for name in UNTYPED_BASES)
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT / 'producers'}\n{ignored}")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config)]
    done = subprocess.run(
        [*command, *map(str, sorted(programs.glob("*.py")))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=programs,
    )
    assert done.returncode == 0, done.stdout
