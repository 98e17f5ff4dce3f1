"""What MkDocs does to our pages. It runs in MkDocs' own environment, so it imports nothing of ours.

* An entry `folder/*` of the navigation stands for the pages of that folder.
* A page is found by the questions that it answers, and some pages count less in a search.
* The first time that a page uses a word of the glossary, the word leads there.
* The search is mended: words with digits made it fail.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import relpath
from typing import Any

GLOSSARY = "docs/glossary.md"
QUESTIONS = "docs/questions.md"
_BOOSTS = {
    "docs/upstream/": 0.05,
    "docs/decisions/": 0.3,
    "docs/runbooks/": 0.5,
    "docs/reference/json-api.md": 0.1,
    "docs/reference/": 0.5,
    "docs/bench/": 0.3,
    "ARCHITECTURE.md": 0.2,
    "CONTRIBUTING.md": 0.2,
    "CHANGELOG.md": 0.2,
}
"""What counts less in a search: most people look for a guide, and do not change committerd."""
_WORKERS = "assets/javascripts/workers/search.*.min.js"
_STATE = "e=e+s+o.id}return e"
_STATE_WITH_AN_END = 'e=e+s+o.id+";"}return e'
"""lunr keeps its words in an automaton. It names a state by the characters that lead on from it, each followed by the
number of the next state.

A character that is a digit runs together with the number before it. So two states may get the same name, and lunr
keeps only the first. Then a search meets a word that is on no page, and fails: nothing was found for `kafka`. A
semicolon after each number keeps the names apart.
"""
_ANSWER = re.compile(r"^\| ([^|]+) \| \[[^]]+\]\(([^)#]+\.md)", re.MULTILINE)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_NO_LINKS_IN = frozenset({"a", "code", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "script", "style", "svg", "nav"})
_EMPTY = frozenset(
    {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr", "area", "base", "embed", "track"}
)


def on_config(config: Any) -> Any:
    """Expand `folder/*` in the navigation."""
    config["nav"] = [_expanded(entry, Path(config["docs_dir"])) for entry in config["nav"]]
    return config


def on_post_build(*, config: Any) -> None:
    """Mend lunr in the script that searches. Raises `RuntimeError` if it is not the script that is known here."""
    workers = list(Path(config["site_dir"]).glob(_WORKERS))
    for worker in workers:
        script = worker.read_text(encoding="utf-8")
        if script.count(_STATE) != 1:
            raise RuntimeError(f"{worker} names lunr's states in another way: does test_site.py pass without the mend?")
        worker.write_text(script.replace(_STATE, _STATE_WITH_AN_END), encoding="utf-8")
    if len(workers) != 1:
        raise RuntimeError(f"the theme has {len(workers)} scripts that search, not one: {_WORKERS}")


def _expanded(entry: Any, folder: Path) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(below, folder) for title, below in entry.items()}
    if isinstance(entry, list):
        return [made for below in entry for made in _many(below, folder)]
    return entry


def _many(entry: Any, folder: Path) -> Iterator[Any]:
    if isinstance(entry, str) and entry.endswith("/*"):
        found = sorted(
            folder.joinpath(entry).parent.glob("*.md"), key=lambda path: (path.name != "README.md", path.name)
        )
        yield from (str(path.relative_to(folder)) for path in found)
    else:
        yield _expanded(entry, folder)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Say how much the page counts in a search, and let the questions that it answers find it."""
    path = page.file.src_uri
    boost = next((boost for prefix, boost in _BOOSTS.items() if path.startswith(prefix)), 1)
    page.meta["search"] = {"boost": boost}
    questions = files.get_file_from_path(QUESTIONS)
    if questions is not None:
        text = Path(questions.abs_src_path).read_text(encoding="utf-8")
        asked = [words for words, target in _ANSWER.findall(text) if f"docs/{target}" == path]
        if asked:
            page.meta["tags"] = asked
    return markdown


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Link the words of the glossary, each once."""
    glossary = files.get_file_from_path(GLOSSARY)
    if glossary is None or page.file.src_uri == GLOSSARY or page.file.src_uri.startswith("docs/reference/"):
        return content
    terms = terms_of(Path(glossary.abs_src_path).read_text(encoding="utf-8"))
    base = relpath(glossary.url.rstrip("/"), page.file.url.rstrip("/") or ".") + "/"
    return linked(content, terms, base)


def terms_of(glossary: str) -> dict[str, str]:
    """The words of the glossary, as they may stand in a text, and where each is explained."""
    terms = dict[str, str]()
    for heading in _HEADING.findall(glossary):
        anchor = re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for word in heading.split(", "):
            terms[word.lower()] = anchor
    return terms


def linked(content: str, terms: dict[str, str], base: str) -> str:
    """The HTML with a link at the first use of each word."""
    marker = _Marker(terms, base)
    marker.feed(content)
    marker.close()
    return "".join(marker.parts)


class _Marker(HTMLParser):
    """Copies HTML, and puts links around words in its text."""

    def __init__(self, terms: dict[str, str], base: str) -> None:
        super().__init__(convert_charrefs=False)
        self.parts = list[str]()
        self._terms = dict(terms)
        self._base = base
        self._closed = list[str]()
        """The open elements in which no word is linked."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _EMPTY and (self._closed or tag in _NO_LINKS_IN):
            self._closed.append(tag)
        self.parts.append(self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if self._closed and self._closed[-1] == tag:
            self._closed.pop()
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.parts.append(data if self._closed or not self._terms else self._with_links(data))

    def handle_entityref(self, name: str) -> None:
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.parts.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.parts.append(f"<!--{data}-->")

    def _with_links(self, text: str) -> str:
        words = "|".join(re.escape(word) for word in sorted(self._terms, key=len, reverse=True))

        def link(found: re.Match[str]) -> str:
            anchor = self._terms.get(found[1].lower())
            if anchor is None:  # linked a moment ago
                return found[0]
            self._terms = {word: where for word, where in self._terms.items() if where != anchor}
            return f'<a class="term" href="{html.escape(self._base)}#{anchor}">{found[1]}</a>'

        return re.sub(rf"(?<![\w/.-])({words})(?![\w/-])", link, text, flags=re.IGNORECASE)
