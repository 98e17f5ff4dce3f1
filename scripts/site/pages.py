"""Which pages the site has, and what they link to besides pages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import yaml

from scripts.programs import ROOT
from scripts.site.markdown import for_python_markdown
from scripts.site.messages import with_messages

_OUTSIDE_DOCS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("deploy/README.md", "helm/committerd/README.md", "producers/README.md", "examples/java/README.md"),
)
_ALERTS = "<!-- alerts -->"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def sources() -> list[Path]:
    """All pages."""
    return [*(ROOT / name for name in _OUTSIDE_DOCS), *sorted((ROOT / "docs").rglob("*.md"))]


def collect(target: Path) -> None:
    """Write all pages into `target`, which is made anew, at their places, and beside them the files that they link."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("site.css"), target / "site.css")
    pages = sources()
    for page in pages:
        text = with_messages(page.read_text(encoding="utf-8")).replace(_ALERTS, alerts_table())
        copy = target / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(for_python_markdown(_linked(text, page)), encoding="utf-8")
        for file in _files(text, page):
            if file not in pages:
                beside = target / file.relative_to(ROOT)
                beside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, beside)


def alerts_table() -> str:
    """What each alert says, with its runbook, in Markdown for a page in docs/; `…` stands for what differs."""
    rows = ["| what the alert says | runbook |", "|---|---|"]
    file = ROOT / "helm" / "committerd" / "files" / "alerts.yml"
    for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                said = rule["annotations"]["summary"].replace("{{ with $labels.dataset }}{{ . }}: {{ end }}", "")
                said = re.sub(r"\{\{.*?\}\}B?", "…", re.sub(r" \(\{\{.*?\}\}\)", "", said)).replace("|", "\\|")
                rows.append(f"| {said} | [{rule['alert']}](runbooks/{rule['alert']}.md) |")
    return "\n".join(rows)


def _linked(text: str, page: Path) -> str:
    """The page with links to README.md where it links a folder; a folder without that page is no link."""

    def to_page(found: re.Match[str]) -> str:
        shown, (target, _, anchor) = found[1], found[2].partition("#")
        folder = page.parent / target
        if "://" in target or not target or not folder.is_dir():
            return found[0]
        if not (folder / "README.md").exists():
            return shown
        return f"[{shown}]({target.rstrip('/')}/README.md{'#' + anchor if anchor else ''})"

    return _LINK.sub(to_page, text)


def _files(text: str, page: Path) -> list[Path]:
    targets = [found[2].partition("#")[0] for found in _LINK.finditer(_FENCED.sub("", text))]
    paths = [(page.parent / target).resolve() for target in targets if target and "://" not in target]
    return [path for path in paths if path.is_file()]
