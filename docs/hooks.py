"""What the site's build adds to MkDocs: pages, descriptions, moved pages, `llms.txt`.

MkDocs calls the functions whose names begin with `on_`. They are few and short, so that
a move to another site builder is cheap.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
}
"""Pages that are kept in the repository's root, and their places on the site."""
ABOUT = {
    "CHANGELOG.md": "What changed in each version of Shoal, breaking changes first.",
    "CONTRIBUTING.md": "Set up a clone, add a strategy; rules for code and text.",
}
OPTIONAL = "Project"
"""The tab that a reader who wants to use Shoal can leave out."""

GENERATED = "<!-- make generate writes this page. -->"
BY_HAND = "<!-- Written by hand from here on. -->"
RECORDS = ("acceptance/", "decisions/")
"""Beginnings of pages that are not for users."""
MOVED = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<link rel="canonical" href="{to}">
<meta http-equiv="refresh" content="0; url={to}">
</head>
<body><a href="{to}">This page has moved.</a></body>
</html>
"""

_LINK = re.compile(r"\]\(((?:docs/|[A-Z]+\.md)[^)\s]*)\)")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[`*]")
LEAST, MOST = 20, 160
"""Characters of a description; search engines cut longer ones."""


def on_config(config: Any) -> Any:
    """Links each page to its source, if the repository's address is known."""
    home = os.environ.get("SHOAL_REPOSITORY", "").rstrip("/")
    if home:
        config.repo_url, config.repo_name = home, "Source"
        config.edit_uri = "edit/main/docs/"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are kept in the repository's root."""
    for name, place in PAGES.items():
        text = relinked((ROOT / name).read_text(), place)
        found = File.generated(
            config, place, content=f"---\ndescription: {ABOUT[name]}\n---\n\n{text}"
        )
        found.edit_uri = f"../{name}"
        files.append(found)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Describes a page by its first sentences, if it does not describe itself.

    A search shows pages for users alone. A page that is generated as a whole is not
    offered to be edited: its text is in the code.
    """
    if GENERATED in markdown and BY_HAND not in markdown:
        page.edit_url = None
    page.meta.setdefault("description", first_words(markdown))
    if page.file.src_uri.startswith(RECORDS):
        page.meta.setdefault("search", {"exclude": True})
    return markdown


def on_env(env: Any, config: Any, files: Any) -> Any:
    """Adds `llms.txt`: every page with its description, in the order of the tabs."""
    home = next(f.page for f in files.documentation_pages() if f.page.is_homepage)
    text = llms_text(config.site_name, config.site_description, list(following(home)))
    files.append(File.generated(config, "llms.txt", content=text))
    return env


def on_post_build(config: Any) -> None:
    """Leaves a page at each old address that leads to the new one."""
    for old, new in config.extra["moved"].items():
        place = Path(config.site_dir, old)
        to = posixpath.relpath(new, old) + "/"
        (place / "index.html").parent.mkdir(parents=True, exist_ok=True)
        (place / "index.html").write_text(MOVED.format(to=to))


def relinked(text: str, place: str) -> str:
    """Returns a page of the repository's root with links that hold on the site.

    Example:
        >>> relinked("[a](docs/how-to/aws.md#x), [b](CHANGELOG.md)", "project/p.md")
        '[a](../how-to/aws.md#x), [b](changelog.md)'
    """

    def link(found: re.Match[str]) -> str:
        path, mark, part = found[1].partition("#")
        on_site = PAGES.get(path) or path.removeprefix("docs/").replace(
            "README.md", "index.md"
        )
        relative = posixpath.relpath(on_site, posixpath.dirname(place))
        return f"]({relative}{mark}{part})"

    return _LINK.sub(link, text)


def first_words(markdown: str) -> str:
    """Returns the first sentences of a page's first paragraph, without markup."""
    parts = (part.strip() for part in re.split(r"\n\s*\n", markdown))
    text = next((p for p in parts if p[:1].isalnum() or p[:1] in "`*["), "")
    plain = _MARKUP.sub(lambda found: found[1] or "", " ".join(text.split()))
    if len(plain) <= MOST:
        return plain
    end = plain.rfind(". ", LEAST, MOST)
    return plain[: end + 1] if end > 0 else plain[: plain.rfind(" ", 0, MOST)] + " …"


def following(page: Any) -> Iterator[Any]:
    """Yields a page and those after it, as the links at the foot lead."""
    while page is not None:
        yield page
        page = page.next_page


def llms_text(name: str, about: str, pages: list[Any]) -> str:
    """Returns the text of `llms.txt`, as https://llmstxt.org describes it."""
    lines, shown = [f"# {name}", "", f"> {' '.join(about.split())}"], ""
    for page in pages:
        tab = page.ancestors[-1].title if page.ancestors else name
        if tab != shown:
            lines += ["", f"## {'Optional' if tab == OPTIONAL else tab}", ""]
            shown = tab
        title = re.sub(r"<[^>]*>", "", page.title)
        lines.append(f"- [{title}]({page.url or './'}): {page.meta['description']}")
    return "\n".join(lines) + "\n"
