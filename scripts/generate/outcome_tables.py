"""The tables of statuses and reasons in `docs/wire-contract.md`, from `committerd.commands.explain.advice`."""

from __future__ import annotations

from committerd.commands.explain.advice import reason_table, status_table
from scripts.generate import ROOT

FILE, SOURCE = "docs/wire-contract.md", "committerd/commands/explain/advice.py"


def text() -> str:
    """Return the page with its two tables as the code has them."""
    page = (ROOT / FILE).read_text(encoding="utf-8")
    for name, table in (("statuses", status_table()), ("reasons", reason_table())):
        first, last = f"<!-- {name}, written by make docs -->\n", f"<!-- end of the {name} -->"
        before, found, rest = page.partition(first)
        _, also, after = rest.partition(last)
        if not found or not also:
            raise ValueError(f"{FILE} has no place for the table of {name}")
        page = f"{before}{first}{table}\n{last}{after}"
    return page
