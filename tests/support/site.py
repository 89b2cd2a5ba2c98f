"""The documentation as a site: built once for all processes of pytest, and read."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import final
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).parents[2]
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src"}
"""Attributes whose address a browser loads by itself."""
LOADED_BY_LINK = {"icon", "manifest", "modulepreload", "preload", "stylesheet"}


def build(folder: Path) -> Path:
    """Builds the site strictly, unless another process has built it there.

    Args:
        folder: Folder that all processes of this run of pytest share.

    Raises:
        AssertionError: MkDocs warns of something.
    """
    site = folder / "site"
    with (folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            part = folder / "site.part"  # of a build that was killed, too
            made = subprocess.run(
                # With --quiet it counts no warning.
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir",
                 str(part)],
                cwd=ROOT, capture_output=True, text=True, check=False,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            )  # fmt: skip
            assert made.returncode == 0, made.stderr[-4000:]
            part.rename(site)
    return site


@final
@dataclass(kw_only=True)
class Html:
    """What is checked of a page.

    Attributes:
        ids: Anchors.
        links: Addresses of links.
        loaded: Addresses that a browser loads by itself.
        images: Address and alternative text of each image.
        description: Its description, for search engines.
        canonical: The address that it names as its own.
    """

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    images: list[tuple[str, str]] = field(default_factory=list)
    description: str = ""
    canonical: str = ""


@final
class _Reader(HTMLParser):
    """Collects what `Html` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Html()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the attributes of an element."""
        given = {name: value or "" for name, value in attrs}
        found = self.found
        found.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            found.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            found.loaded.append(given[LOADED[tag]])
        if tag == "img":
            found.images.append((given.get("src", ""), given.get("alt", "")))
        kinds = set(given.get("rel", "").split())
        if tag == "link" and kinds & LOADED_BY_LINK:
            found.loaded.append(given["href"])
        if tag == "link" and "canonical" in kinds:
            found.canonical = given["href"]
        if tag == "meta" and given.get("name") == "description":
            found.description = given["content"]


def read_html(path: Path) -> Html:
    """Reads a page."""
    reader = _Reader()
    reader.feed(path.read_text())
    return reader.found


@final
class Site:
    """All pages of a built site.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = {path: read_html(path) for path in sorted(folder.rglob("*.html"))}

    def target(self, page: Path, address: str) -> tuple[Path, str] | None:
        """Returns file and anchor of an address; None for one of another site."""
        address, anchor = urldefrag(address)
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            return None
        path = unquote(parts.path)
        base = self.folder if path.startswith("/") else page.parent
        found = page if not path else Path(os.path.normpath(base / path.lstrip("/")))
        return (found / "index.html" if found.is_dir() else found), anchor

    def broken_links(self) -> Iterator[str]:
        """Yields links whose page or anchor is not there."""
        for page, html in self.pages.items():
            for address in {*html.links, *html.loaded}:
                target = self.target(page, address)
                if target is None:
                    continue
                path, anchor = target
                name = page.relative_to(self.folder)
                if not path.is_file():
                    yield f"{name}: {address}"
                elif anchor and path.suffix == ".html":
                    there = self.pages[path].ids
                    if unquote(anchor) not in there | {"__top"}:
                        yield f"{name}: {address}"
