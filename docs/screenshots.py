"""Pictures of the page for the docs, from the runs of `shoal demo`.

Run: `python docs/screenshots.py [FOLDER]`. Without a folder of runs it runs the demo.
The picture of logs is of a run of its own, as workers of the demo print nothing.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "assets" / "ui"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 400, "height": 860}


def demo(place: Path) -> Path:
    """Runs the demo; returns the folder of its runs."""
    subprocess.run([sys.executable, "-m", "shoal", "demo"], cwd=place, check=True)
    return place / "shoal-runs"


TALKING = """
import sys, traceback, keras, numpy as np, shoal

class Files(keras.utils.PyDataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        if at % 4 == 0:
            print(f"reading shard-{at:03d}.npz", flush=True)
        if at == 32:
            try:
                open("/data/labels-032.csv")
            except OSError:
                traceback.print_exc()
                print("shard 32 has no labels: zeros in their place", flush=True)
        x = np.random.default_rng(at).standard_normal((32, 16)).astype("f4")
        return x, (x[:, :1] > 0).astype("f4")

if __name__ == "__main__":
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    shoal.fit(model, Files(), epochs=2, workers=2, strategy="downpour", verbose=0,
              run=sys.argv[1])
"""


def talk(place: Path) -> Path:
    """Makes a run whose workers print; returns its folder."""
    script, root = place / "talking.py", place / "logs"
    script.write_text(TALKING)
    subprocess.run([sys.executable, str(script), str(root)], cwd=place, check=True)
    [run] = (path for path in root.iterdir() if (path / "events").is_dir())
    return run


def save(page: Any, name: str) -> None:
    """Keeps a picture with few colours, so that it is small."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    held = io.BytesIO()
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(held, "PNG", optimize=True)
    (OUT / f"{name}.png").write_bytes(held.getvalue())
    print(f"{name}.png {held.tell():,} bytes")


def pages_of(root: Path) -> dict[str, str]:
    """Returns the name of each picture, and the page's address."""
    ids = sorted(path.name for path in root.iterdir() if (path / "events").is_dir())
    named = "&".join(f"runs={root.name}/{run}" for run in ids)
    lost = (run for run in reversed(ids) if "worker_lost" in text_of(root / run))
    marked = next(lost, ids[-1])
    own = f"/runs/{root.name}/{marked}"
    return {
        "runs": "/", "run": f"{own}?smooth=0.8",
        "compare": f"/compare?{named}", "new": "/new",
    }  # fmt: skip


def text_of(run: Path) -> str:
    """Returns the events of a run as text."""
    return "".join(path.read_text() for path in (run / "events").iterdir())


def take(browser: Any, root: Path, home: Path, pages: dict[str, str]) -> None:
    """Takes pictures of pages of a folder of runs, wide and narrow, light and dark."""
    server = subprocess.Popen(
        [sys.executable, "-m", "shoal", "ui", "--no-browser", "--port", "0",
         "--root", str(root)],
        stdout=subprocess.PIPE, text=True, cwd=home,
        env={**os.environ, "HOME": str(home), "SHOAL_CACHE": str(home)},
    )  # fmt: skip
    try:
        link = server.stdout.readline().strip() if server.stdout else ""
        base = link.partition("/?")[0]
        for size, shape in (("", WIDE), ("-phone", PHONE)):
            for theme in ("light", "dark"):
                context = browser.new_context(viewport=shape, color_scheme=theme)
                page = context.new_page()
                page.goto(link)
                for name, path in pages.items():
                    page.goto(f"{base}{path}")
                    if name in ("run", "compare"):
                        page.locator(".plot canvas").first.wait_for()
                    if name == "run":
                        page.evaluate(
                            "document.querySelector('#curves').scrollIntoView()"
                        )
                    save(page, f"{name}{size}-{theme}")
                context.close()
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Makes all pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        home = Path(place)
        root = Path(sys.argv[1]).resolve() if sys.argv[1:] else demo(home)
        talking = talk(home)
        browser = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
        take(browser, root, home, pages_of(root))
        logs = f"/runs/logs/{talking.name}/logs?q=shard"
        take(browser, talking.parent, home, {"logs": logs})
        browser.close()


if __name__ == "__main__":
    main()
