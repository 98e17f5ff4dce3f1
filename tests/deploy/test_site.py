"""The documentation site: what is on its pages, and what a reader sees and finds in a browser."""

from __future__ import annotations

import configparser
import functools
import http.server
import json
import re
import shlex
import string
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import pytest

import committerd_client
from committerd.reasons import INVALID_REASONS, REFUSAL_CAUSES, UNSUPPORTED_REASONS
from committerd.settings.load import load_settings
from harness import PartMissingError
from harness.chromium import BrowserPage, chromium
from scripts.programs import ROOT
from scripts.site.__main__ import build
from scripts.site.markdown import for_python_markdown
from scripts.site.pages import sources
from tests.deploy import alerts
from tests.deploy.test_readme import missing

_AXE = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
rules: {"scrollable-region-focusable": {enabled: false}}})
.then(found => found.violations.map(one => one.id + ": " + one.nodes.map(node => node.html).join(" ")))"""
"""The theme lets the keyboard scroll wide code where a pointer can hover, which a headless browser has not."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_RESULT = ".md-search-result__item > a"
_FOUND_OR_NOT = (
    f"document.querySelectorAll('{_RESULT}').length > 0"
    " || document.querySelector('.md-search-result__meta')?.textContent.includes('No matching')"
)
_LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
_EMPTY = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
_NOT_READ = {"code", "pre", "script", "style", "svg"}


class _Page(HTMLParser):
    """What a page loads, and its text outside code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads = list[str]()
        self.text = list[str]()
        self._inside = list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _EMPTY and (self._inside or tag in _NOT_READ):
            self._inside.append(tag)
        given = dict(attrs)
        target = given.get(_LOADED.get(tag, ""))
        if target and given.get("rel") != "canonical":
            self.loads.append(target)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it: any warning, such as a link that leads nowhere, is an error."""
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def _html(site: Path, page: Path) -> Path:
    path = page.relative_to(ROOT)
    inside = path.parent if path.name == "README.md" else path.with_suffix("")
    return site / inside / "index.html"


def test_each_page_is_there_and_shows_no_markdown(site: Path) -> None:
    """A list, a table or a block that MkDocs takes for text would be seen as it is written."""
    for page in sources():
        text = "".join(_Page(_html(site, page)).text)
        found = re.search(r"```|\|---|\]\([^)]*\)|^\s*\* \w|<!--", text, re.MULTILINE)
        assert found is None, (page, text[max(0, found.start() - 100) : found.end() + 100])


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    loaded = {target for page in pages for target in _Page(page).loads}
    assert loaded
    assert not {target for target in loaded if re.match(r"(\w+:)?//", target)}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//|@import\s+[\"'](?:https?:)?//", styles)


def test_lists_and_tables_are_made_as_github_reads_them() -> None:
    github = "Two steps:\n1. Look\n   again:\n\n   ```sh\n   ls\n   ```\n\n2. Go\n   * now\nmore.\n\n| `a \\| b` | c |"
    ours = for_python_markdown(github)
    assert ours.startswith(
        "Two steps:\n\n1. Look\n    again:\n\n    ```sh\n    ls\n    ```\n\n2. Go\n    * now\nmore.\n\n"
    )
    assert ours.endswith("\n| `a | b` | c |")


def test_the_reference_names_every_reason_and_every_name_of_the_client(site: Path) -> None:
    reasons = (site / "docs" / "reference" / "reasons" / "index.html").read_text(encoding="utf-8")
    for code in {*INVALID_REASONS, *UNSUPPORTED_REASONS, *REFUSAL_CAUSES}:
        assert f"<code>{code}</code>" in reasons
    api = (site / "docs" / "reference" / "python-api" / "index.html").read_text(encoding="utf-8")
    for name in committerd_client.__all__:
        assert f'id="committerd_client.{name}"' in api, name
    for name in ("CommitClient.upsert", "staging.merge_insert"):
        assert f'id="committerd_client.{name}"' in api, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_page_is_accessible_and_asks_for_nothing_elsewhere(served: str, axe: str, scheme: str) -> None:
    async with chromium() as page:
        await page.prefer(scheme)
        for path in ("", "docs/client/", "docs/reference/settings/"):
            await page.open(f"{served}{path}")
            await page.until(f"document.readyState === 'complete' && location.href === '{served}{path}'")
            await page.value(axe + "; true")
            assert await page.value(_AXE) == []
        assert page.requested
        assert all(url.startswith((served, "data:", "blob:")) for url in page.requested), page.requested


_FOUND_WITHIN = 5
_SEARCHES = {
    "kafka tls password": "docs/connecting/",
    "storage_options s3 credentials": "docs/connecting/",
    "timeout": "docs/connecting/",
    "read table while writing": "docs/reading/",
    "several tables one process": "docs/fleet/",
    "drop table": "docs/how-to/drop-a-table/",
    "debezium": "docs/how-to/debezium/",
    "upgrade": "docs/day-two/",
    "backup": "docs/day-two/",
    "systemd": "docs/how-to/systemd/",
    "pytest fixture": "docs/how-to/test-your-application/",
    "undecided": "docs/how-to/undecided/",
    "nothing happens": "docs/client/",
    "dead letter replay": "docs/commands/",
    "spark streaming": "docs/spark/",
    "csv": "docs/commands/",
    "kafka topic into table": "docs/ingest/",
    "compaction": "docs/maintenance/",
    "vector index": "docs/client/",
    "acl": "docs/operating/",
    "error message": "docs/troubleshooting/",
    "rollback": "docs/how-to/undo-a-change/",
    "gdpr": "docs/how-to/erase-rows/",
    "delete rows": "docs/client/",
    "async fastapi": "docs/client/",
    "s3 cost": "docs/capacity/",
    "change data feed": "docs/change-events/",
    "high availability": "docs/operating/",
}
"""What people type, and the page that they look for: among the first results, not counting the list of questions."""


async def test_what_people_type_finds_the_page_that_they_look_for(served: str) -> None:
    try:
        async with chromium() as page:
            found = {typed: await _results(page, served, typed) for typed in _SEARCHES}
    except PartMissingError as error:
        pytest.skip(str(error))
    first = {typed: paths[:_FOUND_WITHIN] for typed, paths in found.items()}
    assert not {typed: first[typed] for typed, wanted in _SEARCHES.items() if wanted not in first[typed]}


async def test_a_search_for_any_first_character_finds_pages(served: str) -> None:
    """A search for one character looks up every word that begins with it.

    If one of them makes the search fail, the page says that nothing matches.
    """
    try:
        async with chromium() as page:
            found = {typed: await _results(page, served, typed) for typed in string.ascii_lowercase + string.digits}
    except PartMissingError as error:
        pytest.skip(str(error))
    assert [typed for typed, paths in found.items() if not paths] == []


def test_each_question_has_a_page_that_is_found_by_it(site: Path) -> None:
    """The questions are terms of the search: the index has each with its page."""
    rows = re.findall(
        r"^\| ([^|]+) \| \[[^]]+\]\(([^)#]+)\.md(?:#[^)]*)?\) \|$",
        (ROOT / "docs" / "questions.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) >= 25
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    tags = {page["location"]: page.get("tags", []) for page in index["docs"]}
    for asked, target in rows:
        assert asked in tags[f"docs/{target}/"], asked


async def _results(page: BrowserPage, served: str, asked: str) -> list[str]:
    """The pages that the search finds, best first, without the list of questions."""
    url = f"{served}docs/glossary/?q={quote(asked)}"
    await page.open(url)
    await page.until(f"location.href.startsWith('{url}') && ({_FOUND_OR_NOT})")
    found = await page.value(f"[...document.querySelectorAll('{_RESULT}')].map(one => one.getAttribute('href'))")
    paths = [urlsplit(urljoin(url, one)).path.removeprefix("/") for one in found]
    return [path for path in dict.fromkeys(paths) if path != "docs/questions/"]


def test_the_page_on_troubleshooting_names_every_alert(site: Path) -> None:
    page = (site / "docs" / "troubleshooting" / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'href="\.\./runbooks/(\w+)/"', page))
    assert {rule["alert"] for rule in alerts.alerts()} <= named


def test_each_row_on_compatibility_names_tests_and_targets_that_exist() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for row in rows:
        by = row.rstrip(" |").rpartition("|")[2]
        tests, makes = re.findall(r"`(tests/[^`]+)`", by), re.findall(r"`make ([\w-]+)`", by)
        assert tests or makes or "all tests" in by, row
        assert all((ROOT / test).is_file() for test in tests), row
        assert all(re.search(rf"^{target}:", targets, re.MULTILINE) for target in makes), row


def test_a_page_leads_to_the_glossary_by_the_first_use_of_a_word(site: Path) -> None:
    page = (site / "docs" / "conflicts" / "index.html").read_text(encoding="utf-8")
    assert page.count('<a class="term" href="../glossary/#read-version">') == 1
    words = set(re.findall(r'class="term" href="[^"]*#([\w-]+)"', page))
    known = set(
        re.findall(r'<h2 id="([\w-]+)">', (site / "docs" / "glossary" / "index.html").read_text(encoding="utf-8"))
    )
    assert len(words) > 3
    assert words <= known


def test_the_unit_and_the_settings_of_systemd_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "how-to" / "systemd.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "events.toml").write_text(settings, encoding="utf-8")
    monkeypatch.setenv("COMMITTERD_CONFIG", str(tmp_path / "events.toml"))
    assert load_settings().dataset.name == "events"
    (text,) = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as the documentation of configparser says
    unit.read_string(text)
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "committerd"
    assert missing(shlex.join(["committerd", *words])) is None
    assert int(unit["Service"]["TimeoutStopSec"]) > load_settings().daemon.drain_seconds
