"""Functions of the site's build."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs")

HOOKS = Path(__file__).parents[2] / "docs" / "hooks.py"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = spec_from_file_location("hooks_of_the_docs", HOOKS)
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("[a](docs/how-to/aws.md#x)", "[a](../how-to/aws.md#x)"),
        ("[a](CHANGELOG.md), [b](README.md)", "[a](changelog.md), [b](../index.md)"),
        ("[a](https://keras.io/x.md)", "[a](https://keras.io/x.md)"),
    ],
)
def test_links_of_the_root_hold_on_the_site(
    hooks: ModuleType, text: str, there: str
) -> None:
    assert hooks.relinked(text, "project/p.md") == there


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("# T\n\nUse `fit`. See [this](a.md).\n\nMore.", "Use fit. See this."),
        (
            "# T\n\n![picture](a.png)\n\n| a |\n\nText\nof two lines.",
            "Text of two lines.",
        ),
        ("# T\n\n" + "word " * 60, ("word " * 60)[:159].rstrip() + " …"),
        ("# T\n\nOne sentence of a page. " + "word " * 60, "One sentence of a page."),
        ("# T\n", ""),
    ],
)
def test_a_page_is_described_by_its_first_words(
    hooks: ModuleType, page: str, words: str
) -> None:
    assert hooks.first_words(page) == words


def test_pages_are_linked_to_their_source_where_it_is_known(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_REPOSITORY", raising=False)
    config = SimpleNamespace(repo_url=None, repo_name=None, edit_uri=None)
    assert hooks.on_config(config).repo_url is None
    monkeypatch.setenv("SHOAL_REPOSITORY", "https://git.example/shoal/")
    assert hooks.on_config(config).repo_url == "https://git.example/shoal"
    assert config.edit_uri == "edit/main/docs/"


@pytest.mark.parametrize(
    ("name", "is_edited"),
    [("python/fit", False), ("cli/shoal-fit", True), ("run-folder", True)],
)
def test_generated_pages_are_not_offered_to_be_edited(
    hooks: ModuleType, name: str, is_edited: bool
) -> None:
    source = HOOKS.parent / "reference" / f"{name}.md"
    file = SimpleNamespace(src_uri=f"reference/{name}.md")
    page = SimpleNamespace(meta={}, file=file, edit_url="there")
    hooks.on_page_markdown(source.read_text(), page=page)
    assert (page.edit_url == "there") is is_edited


def test_llms_txt_has_a_part_for_each_tab(hooks: ModuleType) -> None:
    def page(title: str, tab: str, url: str) -> Any:
        tabs = [SimpleNamespace(title=tab)] if tab else []
        meta = {"description": f"About {title}."}
        return SimpleNamespace(title=title, url=url, ancestors=tabs, meta=meta)

    pages = [
        page("Home", "", ""),
        page("A", "Tutorial", "a/"),
        page("B", "Project", "b/"),
    ]
    assert hooks.llms_text("Shoal", "It\ntrains.", pages) == (
        "# Shoal\n\n> It trains.\n\n## Shoal\n\n- [Home](./): About Home.\n\n"
        "## Tutorial\n\n- [A](a/): About A.\n\n## Optional\n\n- [B](b/): About B.\n"
    )
