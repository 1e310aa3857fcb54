"""A look at the site in Chromium: nothing overflows, pictures load, formulas are drawn, the search finds.

`python -m website.look` opens every page of build/docs, wide and narrow. The browser is that of the variable
CHROMIUM, one that is installed, or one from the npm package @sparticuz/chromium, which is fetched into
build/chromium.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from website.hooks import ROOT

SITE = ROOT / "build" / "docs"
WIDTHS = (1280, 390)
# A browser without a screen and without a graphics card.
OPTIONS = [
    "--no-sandbox",
    "--no-zygote",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--allow-file-access-from-files",
]

# What is wrong with a page, as a list of sentences. Things that scroll by themselves may be wide.
FAULTS = r"""
() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  const over = document.documentElement.scrollWidth - width;
  if (over > 1) faults.push(`the page is ${over} pixels too wide`);
  const scrolls = (e) => {
    for (; e; e = e.parentElement)
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)) return true;
    return false;
  };
  for (const e of document.querySelectorAll("article *")) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > width + 1 && !scrolls(e))
      faults.push(`<${e.tagName}> ends ${box.right - width} pixels outside: ${e.textContent.slice(0, 60)}`);
  }
  for (const e of document.images)
    if (!e.complete || !e.naturalWidth) faults.push(`the picture ${e.src.slice(0, 120)} does not load`);
  for (const e of document.querySelectorAll("math")) {
    const box = e.getBoundingClientRect();
    if (box.width < 2 || box.height < 2)
      faults.push(`the formula ${e.textContent.slice(0, 60)} is not drawn`);
  }
  const text = document.querySelector("article").cloneNode(true);
  for (const e of text.querySelectorAll("pre, code")) e.remove();
  const raw = text.textContent.match(/:math:|\\\(|\\\[|\$\$|\.\. math|>>>/);
  if (raw) faults.push(`markup is shown as text: ${raw[0]}`);
  return faults;
}
"""


def browser() -> str:
    """The path of a Chromium."""
    if given := os.environ.get("CHROMIUM"):
        return given
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    folder = ROOT / "build" / "chromium"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "@sparticuz").exists():
        subprocess.run(
            ["npm", "install", "--silent", "--prefix", str(folder), "@sparticuz/chromium"], check=True
        )
    code = 'import("@sparticuz/chromium").then(m => m.default.executablePath()).then(p => console.log(p))'
    done = subprocess.run(
        ["node", "-e", code],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()[-1]


def faults(page: Any, file: Path) -> Iterator[str]:
    """What is wrong with a page, at each width."""
    outside: list[str] = []
    page.on("request", lambda r: outside.append(r.url) if r.url.startswith("http") else None)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(file.as_uri())
        for fault in page.evaluate(FAULTS):
            yield f"{file.relative_to(SITE)}, {width} wide: {fault}"
    yield from (f"{file.relative_to(SITE)} asks the network for {url}" for url in outside)


def search_faults(page: Any) -> Iterator[str]:
    """Whether the search finds what is on the site, opened from disk."""
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.goto((SITE / "index.html").as_uri())
    page.locator("input[name=query]").fill("Sudoku")
    try:
        page.locator(".md-search-result__item a[href*=gallery]").first.wait_for(timeout=10_000)
    except Exception:
        yield "the search does not find the Sudoku of the gallery"


def main(pictures: str | None = None) -> int:
    """Look at every page; with a folder, leave a picture of each there."""
    from playwright.sync_api import sync_playwright

    files = sorted(file for file in SITE.rglob("*.html") if file.name != "404.html")
    found: list[str] = []
    formulas = images = 0
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=OPTIONS)
        for file in files:
            page = chromium.new_page()
            found += faults(page, file)
            formulas += page.locator("math").count()
            images += page.locator("article img").count()
            if pictures:
                Path(pictures).mkdir(parents=True, exist_ok=True)
                page.set_viewport_size({"width": WIDTHS[0], "height": 900})
                name = "-".join(file.relative_to(SITE).with_suffix(".png").parts)
                page.screenshot(path=Path(pictures) / name, full_page=True)
            page.close()
        found += search_faults(chromium.new_page())
        chromium.close()
    print("\n".join(found))
    print(f"{len(files)} pages, {images} pictures, {formulas} formulas, {len(found)} faults")
    return bool(found) or not (formulas and images)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
