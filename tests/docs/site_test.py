# SPDX-License-Identifier: Apache-2.0
"""Builds the site of the documentation, checks its links, and opens it in a headless Chromium.

usage: site_test.py PYTHON    # of an environment with MkDocs Material
"""

import functools
import http.server
import pathlib
import posixpath
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from html.parser import HTMLParser

from browser import Browser, chromium

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
PHONE = 375  # Pixels.

# Pages with wide tables, long lines of code, drawings and long names.
PAGES = ("index.html", "readme.html", "benchmarks.html", "design.html", "protocol.html",
         "status.html", "guide/clusters.html", "guide/model-parallel.html",
         "internals/architecture.html", "reference/index.html",
         "reference/comm/process_group.html", "reference/parallel/distributed_data_parallel.html",
         "sources/examples/index.html")

# Elements of the page's text that reach beyond the screen and lie in nothing that scrolls.
OVERFLOWING = """
(() => {
  const scrolls = (element) => {
    for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const found = [...document.querySelectorAll('.md-main article *')].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.right > innerWidth + 1 && !scrolls(element);
  });
  return found.slice(0, 3).map((element) => element.outerHTML.slice(0, 80));
})()
"""


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def build(python, site):
    """Builds the site, where each warning is an error; returns the output of a failure.

    With --quiet, MkDocs would ignore warnings.
    """
    done = subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "--site-dir", site,
         "--config-file", ROOT / "docs/site/mkdocs.yml"],
        capture_output=True, text=True, timeout=120, check=False)
    return (done.stdout + done.stderr) if done.returncode else ""


def dead_links(site):
    """Returns links to pages and anchors that do not exist, and to other sites' files."""
    pages = {str(path.relative_to(site)): Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for name, page in pages.items():
        if name == "404.html":  # Its links are absolute.
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name),
                                                     urllib.parse.unquote(parts.path)))
            target = path if parts.path else name
            anchor = urllib.parse.unquote(parts.fragment)
            if not (site / target).is_file():
                found.append(f"{name}: no file {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                if not anchor.startswith("__"):  # Added by the theme's code.
                    found.append(f"{name}: no anchor {link}")
    assert len(pages) > 100, f"only {len(pages)} pages were built"
    return found


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(site):
    handler = functools.partial(Quiet, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def check_search(browser, url):
    browser.set_width(1280)
    browser.open(f"{url}/index.html")
    browser.evaluate("""
        (() => {
          const query = document.querySelector('[data-md-component=search-query]');
          query.focus();
          query.value = 'all_reduce';
          query.dispatchEvent(new Event('input', {bubbles: true}));
          query.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
        })()""")
    links = browser.wait_for("""
        (() => {
          const found = document.querySelectorAll('.md-search-result__list a');
          return found.length ? [...found].map((link) => link.href) : null;
        })()""")
    wanted = "reference/comm/process_group.html"
    found = [link for link in links if wanted in link and urllib.parse.urlsplit(link).fragment
             == "all_reduce"]
    assert found, f"the search for all_reduce does not find {wanted}#all_reduce, but {links}"


def check_phone(browser, url):
    browser.set_width(PHONE)
    found = []
    for page in PAGES:
        browser.open(f"{url}/{page}")
        width = browser.evaluate("Math.max(document.body.scrollWidth, "
                                 "document.documentElement.scrollWidth)")
        if width > PHONE:
            found.append(f"{page}: {width} pixels wide on a screen of {PHONE}")
        found += [f"{page}: beyond the screen: {each}" for each in browser.evaluate(OVERFLOWING)]
    assert not found, "\n".join(found)


def main():
    python = sys.argv[1]
    if not pathlib.Path(python).exists() or subprocess.run(
            [python, "-c", "import mkdocs, material"], capture_output=True,
            check=False).returncode:
        print(f"skipped: no MkDocs Material in {python}; ./dev docs fetches it")
        return SKIPPED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        site = pathlib.Path(folder, "site")
        if failure := build(python, site):
            print(failure)
            return 1
        dead = dead_links(site)
        print("\n".join(dead[:20]), f"{len(dead)} dead links", sep="\n")
        if dead:
            return 1
        program = chromium()
        if not program:
            print("skipped: no Chromium to open the site; the build and its links were checked")
            return SKIPPED
        url = serve(site)
        with Browser(program, pathlib.Path(folder, "profile")) as browser:
            check_search(browser, url)
            check_phone(browser, url)
        print("the search and pages on a phone work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
