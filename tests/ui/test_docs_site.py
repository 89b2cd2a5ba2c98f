"""The documentation in a real browser: what it loads, axe, and narrow windows."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from shoal.ui import packages
from shoal.ui.packages import is_there
from tests.support.site import Site, build
from tests.ui.test_browser import AXE, violations

pytest.importorskip("mkdocs")

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(900)]
THEMES = {"light": "default", "dark": "slate"}
PAGES = (
    "", "404.html", "tutorial/", "tutorial/1-laptop/", "tutorial/3-compare/",
    "concepts/leases/", "how-to/choose-a-strategy/", "how-to/look-at-runs/",
    "reference/security/", "reference/learning-quality/", "reference/strategies/",
    "architecture/",
    "project/changelog/",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """As in `test_browser.py`."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves the files of the site as a build with its own address as SHOAL_SITE.

    Scripts of the theme read from the list of all pages which links are of the site.
    """

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/sitemap.xml":
            return super().do_GET()
        text = Path(self.directory, "sitemap.xml").read_text()
        body = re.sub(
            r"<loc>https?://[^/<]+", f"<loc>http://{self.headers['Host']}", text
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())
        return None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    base = tmp_path_factory.getbasetemp()
    return Site(build(base.parent if base.name.startswith("popen-") else base))


@contextmanager
def served_files(folder: Path) -> Iterator[str]:
    """Serves a folder; gives its address."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(site: Site) -> Iterator[str]:
    with served_files(site.folder) as address:
        yield address


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A new page, which may ask no other host and report no error."""
    context = browser.new_context(**options)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith(url) else wrong.append(r.url))
    yield page
    context.close()
    assert wrong == []


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing(browser: Any, url: str, theme: str) -> None:
    if not is_there(packages.AXE, AXE.parent):
        pytest.skip("needs axe-core: python hatch_build.py")
    found: dict[str, list[str]] = {}
    with opened(browser, url, color_scheme=theme) as page:
        for path in PAGES:
            page.goto(f"{url}{path}")
            scheme = page.locator("body").get_attribute("data-md-color-scheme")
            assert scheme == THEMES[theme]
            if wrong := violations(page):
                found[path] = wrong
    assert found == {}


NARROW = {"width": 360, "height": 740}
WIDTH = "document.documentElement.scrollWidth"


def test_no_page_is_wider_than_a_phone(browser: Any, url: str) -> None:
    wide: dict[str, int] = {}
    with opened(browser, url, viewport=NARROW) as page:
        for path in PAGES:
            page.goto(f"{url}{path}")
            width = page.evaluate(WIDTH)
            if width > NARROW["width"]:
                wide[path] = width
    assert wide == {}


def test_no_text_is_wider_than_a_phone(browser: Any, site: Site, url: str) -> None:
    """Of all pages, without scripts, which take a second of each."""
    wide: dict[str, int] = {}
    # Scripts fit them to the window; `test_no_page_is_wider_than_a_phone` has them.
    parts = "'.md-header, .md-sidebar--primary'"
    drop = f"document.querySelectorAll({parts}).forEach((part) => part.remove()); "
    with opened(browser, url, viewport=NARROW, java_script_enabled=False) as page:
        for path, html in site.pages.items():
            if not html.description and path.name != "404.html":
                continue  # it leads to another page at once
            page.goto(f"{url}{path.relative_to(site.folder)}")
            width = page.evaluate(drop + WIDTH)
            if width > NARROW["width"]:
                wide[str(path.relative_to(site.folder))] = width
    assert wide == {}


def test_a_reader_searches_and_changes_the_theme(browser: Any, url: str) -> None:
    with opened(browser, url, color_scheme="light") as page:
        page.goto(url)
        page.locator("body[data-md-color-scheme=default]").wait_for()
        for scheme in ("default", "slate", "default"):  # light, dark, the system's
            page.locator("label[for^=__palette]:visible").click()
            page.locator(f"body[data-md-color-scheme={scheme}]").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("resume an interrupted run")
        # The list is anew with each key: the word is in addresses of what it found.
        page.locator(".md-search-result__link[href*=interrupted]").first.click()
        page.get_by_role("heading", level=1).filter(has_text="esume").wait_for()


def click(page: Any, link: Any) -> None:
    """Clicks a link as a reader does, who has stopped scrolling.

    The theme notes where a page stands, and its heading, up to 0.25 s after it was
    scrolled. A click before that would open the next page at the same height.
    """
    link.scroll_into_view_if_needed()
    page.evaluate("""() => new Promise((done) => {
      const frame = (next) => requestAnimationFrame(next);
      frame(() => frame(() => setTimeout(done, 600)));
    })""")
    link.click()


def test_pages_lead_to_the_next_one(browser: Any, url: str) -> None:
    with opened(browser, url) as page:
        page.goto(f"{url}tutorial/1-laptop/")
        click(page, page.get_by_role("link", name="Next: 2"))
        page.wait_for_url(f"{url}tutorial/2-watch-and-resume/")
        page.get_by_role("heading", level=1, name="2 · Watch").wait_for()


def test_links_change_the_page_without_loading_it_as_a_whole(
    browser: Any, url: str
) -> None:
    """Instant loading, of the foot, of a tab, of the menu, and back."""
    with opened(browser, url) as page:
        page.goto(f"{url}tutorial/1-laptop/")
        page.wait_for_load_state("networkidle")  # it has read the list of pages
        page.evaluate("window.isKept = true")
        loaded: list[str] = []
        page.on(
            "request",
            lambda r: loaded.append(r.url) if r.is_navigation_request() else None,
        )
        links = {
            "tutorial/2-watch-and-resume/": page.get_by_role("link", name="Next: 2"),
            "concepts/": page.locator(".md-tabs__link", has_text="Concepts"),
            "concepts/leases/": page.locator(
                ".md-nav--primary a.md-nav__link:visible", has_text="Leases"
            ),
        }
        for path, link in links.items():
            click(page, link.first)
            page.wait_for_url(f"{url}{path}")
            page.wait_for_function("window.scrollY === 0")
        page.get_by_role("heading", level=1, name="Leases").wait_for()
        assert page.title().startswith("Leases")
        page.go_back()
        page.get_by_role("heading", level=1, name="Concepts").wait_for()
        assert page.evaluate("window.isKept") is True
        assert loaded == []


QUESTIONS = {
    "loss worse with more workers": "concepts/batch-size-and-learning-rate/",
    "stop a run": "how-to/look-at-runs/",
    "resume an interrupted run": "how-to/go-on/",
    "lease": "concepts/",
    "what it costs": "how-to/aws/",
    "parquet S3": "how-to/feed-a-run/",
    "tensorboard": "how-to/look-at-runs/",
    "KERAS_BACKEND": "how-to/every-backend/",
    "dist-keras trainers": "how-to/from-dist-keras/",
    "slow link": "how-to/slow-links/",
}
"""What readers search for, and a page that answers it."""
SEEN = 5  # results that a reader looks at


def test_one_search_answers(browser: Any, url: str) -> None:
    missed: dict[str, list[str]] = {}
    with opened(browser, url) as page:
        for words, place in QUESTIONS.items():
            page.goto(f"{url}?{urlencode({'q': words})}")
            page.locator(".md-search-result__link").first.wait_for()
            links = page.locator(".md-search-result__link").all()
            addresses = [link.get_attribute("href") or "" for link in links]
            pages = [address.partition("?")[0] for address in addresses]
            found = list(dict.fromkeys(pages))[:SEEN]
            if not any(place in address for address in found):
                missed[words] = found
    assert missed == {}
