"""The documentation site: what is on its pages, and what a reader sees and finds in a browser."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import committerd_client
from committerd.reasons import INVALID_REASONS, REFUSAL_CAUSES, UNSUPPORTED_REASONS
from harness import PartMissingError
from harness.chromium import chromium
from harness.node import NodeProgram
from scripts.programs import ROOT
from scripts.site.__main__ import build
from scripts.site.markdown import for_python_markdown
from scripts.site.pages import sources

AXE = NodeProgram("axe", "4.10.2", "axe-core/axe.min.js")
_AXE = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
rules: {"scrollable-region-focusable": {enabled: false}}})
.then(found => found.violations.map(one => one.id + ": " + one.nodes.map(node => node.html).join(" ")))"""
"""The theme lets the keyboard scroll wide code where a pointer can hover, which a headless browser has not."""
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
async def test_a_page_is_accessible_and_asks_for_nothing_elsewhere(served: str, scheme: str) -> None:
    try:
        axe = AXE.installed().read_text("utf-8")
    except PartMissingError as error:
        pytest.skip(str(error))
    async with chromium() as page:
        await page.prefer(scheme)
        for path in ("", "docs/client/", "docs/reference/settings/"):
            await page.open(f"{served}{path}")
            await page.until(f"document.readyState === 'complete' && location.href === '{served}{path}'")
            await page.value(axe + "; true")
            assert await page.value(_AXE) == []
        assert page.requested
        assert all(url.startswith((served, "data:", "blob:")) for url in page.requested), page.requested
