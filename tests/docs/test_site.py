"""The built site: links, anchors, pictures, descriptions, and what it loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.site import ROOT, Site, build
from tests.support.tutorial import TUTORIAL

pytest.importorskip("mkdocs")

pytestmark = [pytest.mark.examples, pytest.mark.process, pytest.mark.timeout(400)]
DESCRIBED = ("tutorial", "how-to", "concepts", "reference")
PARTS = sorted(TUTORIAL.glob("[1-9]-*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    base = tmp_path_factory.getbasetemp()
    return Site(build(base.parent if base.name.startswith("popen-") else base))


def test_links_lead_to_pages_and_anchors(site: Site) -> None:
    assert len(site.pages) > 60
    assert list(site.broken_links()) == []


def test_nothing_is_loaded_from_another_host(site: Site) -> None:
    foreign = {
        f"{page.relative_to(site.folder)}: {address}"
        for page, html in site.pages.items()
        for address in html.loaded
        if site.target(page, address) is None
    }
    assert foreign == set()
    for sheet in site.folder.rglob("*.css"):
        found = re.findall(r"url\(['\"]?(?!data:)([^)'\"]*)", sheet.read_text())
        assert [u for u in found if u.startswith(("http", "//"))] == [], sheet


def test_pictures_have_alternative_texts(site: Site) -> None:
    bare = [
        f"{page.relative_to(site.folder)}: {source}"
        for page, html in site.pages.items()
        for source, text in html.images
        if not text.strip()
    ]
    assert bare == []


def test_pages_are_described_and_link_the_glossary(site: Site) -> None:
    redirected = {page for page, html in site.pages.items() if not html.description}
    for page in redirected:
        assert 'http-equiv="refresh"' in page.read_text(), page
    for page, html in site.pages.items():
        if page in redirected or page.name == "404.html":
            continue
        assert any("glossary" in link for link in html.links), page
        if page.relative_to(site.folder).parts[0] in ("acceptance", "decisions"):
            continue
        assert len(html.description) >= 20, page


@pytest.mark.parametrize(
    "page",
    [
        path
        for folder in DESCRIBED
        for path in sorted((ROOT / "docs" / folder).rglob("*.md"))
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pages_for_users_describe_themselves(page: Path) -> None:
    head = r"---\n(?:title: .+\n)?description: (.+)\n(?:.+\n)*---\n"
    found = re.match(head, page.read_text())
    assert found, "begin the page with `---`, `description: ...`, `---`"
    assert 20 <= len(found[1].strip('"')) <= 160


def test_examples_of_public_names_are_code(site: Site) -> None:
    shown = 0
    for page in (site.folder / "reference" / "python").rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<blockquote>\s*<blockquote>", text), page
        shown += text.count('doc-section-title">Examples')
    assert shown > 40


def test_llms_txt_lists_every_page(site: Site) -> None:
    text = (site.folder / "llms.txt").read_text()
    assert text.startswith("# Shoal\n\n> Distributed training for Keras 3")
    found = re.findall(r"^- \[.+?\]\((.+?)\): (.+)$", text, re.M)
    places = [address for address, _ in found]
    assert len(places) == len(set(places)) > 60
    for address in places:
        target = site.target(site.folder / "index.html", address)
        assert target is not None
        assert target[0] in site.pages
    tabs = re.findall(r"^## (.+)$", text, re.M)
    assert tabs[:3] == ["Shoal", "Tutorial", "How-to"]
    assert tabs[-1] == "Optional"


def test_moved_pages_lead_to_the_new_ones(site: Site) -> None:
    old = (site.folder / "tutorial" / "1-first-run" / "index.html").read_text()
    assert "../1-laptop/" in old


@pytest.mark.parametrize("page", PARTS, ids=lambda path: path.stem)
def test_parts_of_the_tutorial_end_with_what_was_learnt(page: Path) -> None:
    end = page.read_text().partition("\n## What you learnt\n")[2]
    assert end.count("\n- ") >= 3
    assert re.search(r"\*\*(Next:|You have finished)", end)
