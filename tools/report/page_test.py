# SPDX-License-Identifier: Apache-2.0
"""Opens the page of `lockstep report` in a headless Chromium: it must draw itself without an error,
load nothing, and look like something on wide and narrow screens, light and dark.

usage: page_test.py LOCKSTEP [--keep FOLDER]    # keeps the page and its pictures
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

SKIPPED = 77
STEPS = 300
PHASES = ["other", "data", "forward", "backward", "reduce", "wait", "optimizer", "checkpoint"]


def browser():
    """Returns the path of a Chromium; None without one."""
    for name in ["chromium", "chromium-browser", "google-chrome", "chrome"]:
        if path := shutil.which(name):
            return path
    try:
        from playwright.sync_api import sync_playwright
        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
            return path if pathlib.Path(path).exists() else None
    except ImportError:
        return None


# --- Runs ----------------------------------------------------------------------------------------


def own_times(step, is_late):
    """Returns a rank's own milliseconds of a step, by phase."""
    spread = random.gauss
    return {"other": 0.4, "data": max(spread(2, 0.2), 0.1) + (9 if is_late else 0),
            "forward": spread(14, 0.4) + (80 if step == 0 else 0), "backward": spread(24, 0.6),
            "optimizer": 1.5, "checkpoint": 160 if step % 150 == 149 else 0}


def rows_of(ranks, late):
    """Returns each rank's rows, and for whom each has waited, in seconds."""
    rows = [[] for _ in range(ranks)]
    waited = [{} for _ in range(ranks)]
    for step in range(STEPS):
        times = [own_times(step, rank == late) for rank in range(ranks)]
        lengths = [sum(each.values()) for each in times]
        last = lengths.index(max(lengths))
        for rank, each in enumerate(times):
            wait = lengths[last] - lengths[rank]
            each |= {"wait": wait, "reduce": 0.05 if ranks == 1 else 1.2 + 0.5 * ranks}
            if rank != last and step > 0:
                waited[rank][str(last)] = waited[rank].get(str(last), 0) + wait / 1000
            seconds = [each[phase] / 1000 for phase in PHASES]
            rows[rank].append([sum(seconds), *seconds])
    return rows, waited


def run(ranks, late=None):
    """Returns a run.json as RunLog writes it."""
    rows, waited = rows_of(ranks, late)
    totals = [{"rank": rank, "steps": STEPS, "waited_for": waited[rank],
               "seconds": {phase: sum(row[1 + i] for row in rows[rank])
                           for i, phase in enumerate(PHASES)}} for rank in range(ranks)]
    loss = [2.3 * 0.985 ** i + random.gauss(0, 0.02) for i in range(0, STEPS, 5)]
    link = {"name": "shared memory", "latency_s": 1.1e-6, "bytes_per_s": 5.2e9}
    return {"format": "lockstep-run-1", "lockstep": "0.1.0", "torch": "2.13.0",
            "program": "./train", "arguments": ["--epochs", "5", "</script><b>"],
            "started": 1.8e9, "seconds": sum(row[0] for row in rows[0]), "ended": "finished",
            "ranks": ranks, "hosts": 1, "host_of_rank": [0] * ranks,
            "options": {"batch_size": "64", "model": "resnet18"}, "samples": 64 * STEPS * ranks,
            "links": [link] if ranks > 1 else [],
            "all_reduce_bytes_per_step": 8.4e6, "phases": PHASES, "totals": totals,
            "steps": {"first": 1, "every": 1, "columns": ["seconds", *PHASES], "ranks": rows},
            "scalars": {"loss": {"steps": list(range(1, STEPS + 1, 5)), "values": loss},
                        "seed": {"steps": [1, STEPS], "values": [2 ** 60, 2 ** 60]}}}


# --- Pictures ------------------------------------------------------------------------------------


def first_pixel(file):
    """Returns a picture's upper left pixel, which no filter of PNG changes, and its file's size."""
    data = file.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
    packed, at = b"", 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        packed += data[at + 8:at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompressobj().decompress(packed, 4)[1:4]), len(data)


# --- The page ------------------------------------------------------------------------------------


class Page:
    def __init__(self, chromium, file, folder):
        self.chromium, self.file, self.folder = chromium, file, folder

    def open(self, *arguments):
        """Returns what Chromium writes to stdout and stderr."""
        command = [self.chromium, "--headless", "--no-sandbox", "--disable-gpu",
                   "--hide-scrollbars", "--force-device-scale-factor=1",
                   f"--user-data-dir={self.folder}/profile", "--enable-logging=stderr",
                   "--virtual-time-budget=30000", *arguments, self.file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        return done.stdout, done.stderr

    def picture(self, name, width, *arguments):
        file = self.folder / f"{name}.png"
        _, errors = self.open(f"--screenshot={file}", f"--window-size={width},3600", *arguments)
        assert "CONSOLE" not in errors, errors
        return first_pixel(file)


def check_document(page, source):
    document, errors = page.open("--dump-dom")
    assert "CONSOLE" not in errors, errors
    assert document.count("<svg") >= 7, f"{document.count('<svg')} charts"
    assert len(re.findall(r"<rect[^>]*fill=\"var\(--data\)", document)) >= 7, "bars of data"
    assert "NaN" not in document, "a place that is no number"
    assert "&lt;/script&gt;&lt;b&gt;" in document, "a text that is escaped"
    assert "×1." in document, "an answer"
    loads = re.findall(r"(?:src|href)=|url\(|@import|fetch\(", source)
    assert not loads, loads


def check_pictures(page):
    pictures = {"light": page.picture("light", 1100), "phone": page.picture("phone", 390),
                "dark": page.picture("dark", 1100, "--force-dark-mode")}
    for name, (_, size) in pictures.items():
        assert size > 40_000, f"{name}: {size} bytes are an empty picture"
    assert min(pictures["light"][0]) > 200, "a light background"
    assert max(pictures["dark"][0]) < 60, "a dark background"


def check_width(page, source):
    """Nothing but tables, which scroll, may be wider than a phone."""
    measure = "<script>onload = () => setTimeout(() => document.title = " \
        "`beyond ${document.documentElement.scrollWidth - innerWidth}`, 500)</script>"
    copy = page.folder / "measured.html"
    copy.write_text(source.replace("</body>", measure + "</body>"), encoding="utf-8")
    document, _ = Page(page.chromium, copy, page.folder).open("--dump-dom",
                                                              "--window-size=390,800")
    assert "<title>beyond 0</title>" in document, re.findall("<title>.*</title>", document)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lockstep")
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    chromium = browser()
    if chromium is None:
        print("skipped: neither Chromium nor playwright's is installed (apt install chromium)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        random.seed(1)
        files = [folder / f"run{ranks}.json" for ranks in (1, 2, 4)]
        for file, made in zip(files, [run(1), run(2), run(4, late=3)]):
            file.write_text(json.dumps(made), encoding="utf-8")
        report = folder / "report.html"
        subprocess.run([args.lockstep, "report", *files, "--html", report], check=True,
                       stdout=subprocess.DEVNULL)
        page = Page(chromium, report, folder)
        source = report.read_text(encoding="utf-8")
        check_document(page, source)
        check_width(page, source)
        check_pictures(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
