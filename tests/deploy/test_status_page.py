"""The status page in a browser: what a person sees, hears and reaches with the keyboard, in both colour schemes.

With COMMITTERD_SCREENSHOTS=1 it writes the pictures that README and docs show.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from committerd_client import staging
from committerd_common.messages import Status
from harness.child import Launch
from harness.chromium import BrowserPage, chromium
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import StorePlace
from harness.scene import STAYS, Scene

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_PICTURES = bool(os.environ.get("COMMITTERD_SCREENSHOTS"))
_ROWS = "document.querySelectorAll('#transactions tbody tr').length"
_AXE = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})
.then(found => found.violations.map(one => one.id + ": " + one.nodes.map(node => node.html).join(" ")))"""


@pytest.fixture(scope="module")
def daemon(
    kafka: KafkaBroker | RunningKafka, tmp_path_factory: pytest.TempPathFactory, launch: Launch
) -> Iterator[Daemon]:
    """A committer with a history of commits, conflicts and a dead letter."""
    folder = tmp_path_factory.mktemp("events")
    name = "events" if _PICTURES else f"events-{uuid.uuid4().hex[:12]}"
    with (
        tempfile.TemporaryDirectory(prefix="lake-") as lake,
        Scene(
            kafka=kafka.bootstrap_servers,
            name=name,
            folder=folder,
            place=StorePlace(f"{lake}/events.lance"),
            launch=launch,
        ) as scene,
    ):
        scene.table.create(10)
        started = scene.started(**STAYS)
        # A producer's name is text, whatever it looks like.
        scene.ask(scene.table.append(), dataset="/elsewhere.lance", producer="<img src=x onerror=alert(1)>")
        for number, producer in enumerate(("orders", "clicks", "orders", "billing")):
            scene.ask(*(scene.table.append() for _ in range(number + 2)), producer=producer)
        row = f"id = {scene.table.ids()[0]}"
        deletes = [staging.delete(scene.table.open(), row).transaction for _ in range(3)]
        answers = [scene.ask(one, producer="janitor")[0].status for one in deletes]
        assert answers == [Status.COMMITTED, Status.RETRYABLE, Status.RETRYABLE]
        yield started


async def _shown(page: BrowserPage, daemon: Daemon) -> None:
    await page.open(daemon.url() + "/")
    await page.until("document.body && document.body.dataset.shown === 'yes'")
    await page.until(f"{_ROWS} === 18")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_accessible_and_asks_for_nothing_elsewhere(daemon: Daemon, axe: str, scheme: str) -> None:
    async with chromium() as page:
        await page.prefer(scheme)
        await _shown(page, daemon)
        await page.value(axe + "; true")
        assert await page.value(_AXE) == []
        asked = set(page.requested)
        assert {url.partition("?")[0] for url in asked} >= {daemon.url() + "/page.css", daemon.url() + "/api/status"}
        assert all(url.startswith(daemon.url() + "/") for url in asked), asked
        assert page.complaints == []
        back = await page.value("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") is (scheme == "light")
        picture = await page.screenshot()
    assert picture.startswith(b"\x89PNG")
    if _PICTURES:
        _IMAGES.mkdir(exist_ok=True)
        (_IMAGES / f"status-{scheme}.png").write_bytes(picture)


async def test_what_it_shows(daemon: Daemon) -> None:
    async with chromium() as page:
        await _shown(page, daemon)
        assert "active: version" in await page.value("document.getElementById('state').textContent")
        oldest = await page.value("document.querySelector('#transactions tbody tr:last-child').textContent")
        assert "<img src=x onerror=alert(1)>" in oldest
        assert "wrong_dataset" in oldest
        assert await page.value("document.querySelectorAll('#transactions img').length") == 0
        grid = await page.value("document.getElementById('conflicts').textContent")
        assert grid == "could not passdeletedelete2"
        plotted = await page.value("document.querySelectorAll('#rate rect').length")
        assert plotted >= 1
        highest = await page.value(
            "Math.min(...[...document.querySelectorAll('rect')].map(one => one.y.baseVal.value))"
        )
        assert highest >= 0, "a bar leaves its picture"
        assert "18 outcomes, 3 of them not committed" in await page.value(
            "document.getElementById('rate-text').textContent"
        )


async def test_the_keyboard_reaches_all_of_it(daemon: Daemon) -> None:
    focused = "document.activeElement.className || document.activeElement.getAttribute('aria-labelledby') || ''"
    async with chromium() as page:
        await _shown(page, daemon)
        reached = []
        for _ in range(6):
            await page.press("Tab", 9)
            reached.append(await page.value(f"({focused})"))
        assert reached[0] == "skip"
        assert "scroll" in reached
        visible = await page.value("getComputedStyle(document.activeElement).outlineStyle")
        assert visible != "none"
        # What refreshes takes the focus from nobody.
        before = await page.value("window.held = document.activeElement, true")
        assert before
        count = len([url for url in page.requested if "/api/status" in url])
        while len([url for url in page.requested if "/api/status" in url]) < count + 2:
            await page.value("new Promise(done => setTimeout(done, 200))")
        assert await page.value("document.activeElement === window.held")


async def test_a_member_that_does_not_answer_is_told(daemon: Daemon) -> None:
    async with chromium() as page:
        await _shown(page, daemon)
        await page.call("Network.setBlockedURLs", urls=["*/api/*"])
        await page.until("!document.getElementById('problem').hidden")
        assert "What you see is old" in await page.value("document.getElementById('problem').textContent")
        await page.call("Network.setBlockedURLs", urls=[])
        await page.until("document.getElementById('problem').hidden")
