"""`shoal ui`: the web page of runs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.errors import ConfigError
from shoal.plan.variables import environment
from shoal.runs.catalogue import check_root

NEEDED = ("starlette", "uvicorn", "jinja2", "python_multipart", "watchdog")
STATE = "~/.local/state/shoal"


def show_page(  # noqa: PLR0913
    root: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder or URL of runs; may be given several times. Default "
            "$SHOAL_RUNS, ./shoal-runs."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Default 8766 or one after it, 0 for any."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's "
                               "loopback need encryption.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Further name of the page, such as that of a proxy; with https:// "
            "before it where the proxy encrypts."
        ),
    ] = None,
    base_path: Annotated[
        str, typer.Option(help="Path before all pages, behind a proxy: /shoal.")
    ] = "",
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate, with --host.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="With --host: without encryption.")
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="A page without buttons.")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the link.")
    ] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Print requests, without the token.")
    ] = False,
) -> None:  # fmt: skip
    """Shows all runs in a web page on this machine, until Ctrl-C.

    It prints a link with a token: anybody who has it can stop and remove runs.
    """
    if any(find_spec(name) is None for name in NEEDED):
        raise ConfigError(
            "the page needs packages that are not installed. Expected starlette, "
            "uvicorn, jinja2, python-multipart and watchdog. Install them with: pip "
            "install 'shoal[ui]'."
        )
    for place in root or ():
        check_root(place)
    # Imported here: other commands do not load a web server.
    serving: Any = import_module("shoal.ui.serving")
    serving.serve(
        serving.Settings(
            roots=tuple(root or [environment().runs]),
            cache=environment().cache,
            state=Path(STATE).expanduser(),
            port=port,
            host=host,
            allow_hosts=tuple(allow_host or ()),
            base=base_path,
            tls_cert=tls_cert,
            tls_key=tls_key,
            is_insecure=insecure,
            is_read_only=read_only,
            has_browser=not no_browser,
            has_access_log=access_log,
        )
    )
