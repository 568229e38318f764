#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference: a page for each room, made from its public headers.

Public are the headers that lockstep.h and comm.h include. A page has each header's contract, and
its declarations with their comments, without private members and bodies of functions.

  docs/make_reference.py           writes the pages
  docs/make_reference.py --check   fails, and names them, when pages are not what it would write
"""

import argparse
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
WIDTH = 100  # Columns of a page.
UMBRELLAS = ("lockstep/lockstep.h", "lockstep/comm/comm.h")


def public_headers():
    """The headers of each room, in the order of the umbrellas."""
    rooms = {}
    for umbrella in UMBRELLAS:
        for name in re.findall(r'#include "(lockstep/[^"]+)"', (ROOT / umbrella).read_text()):
            if name not in UMBRELLAS:
                rooms.setdefault(name.split("/")[1], []).append(name)
    return dict(sorted(rooms.items()))


def contract_of(lines):
    """The comment that a header begins with, as Markdown: indented lines are code."""
    out, in_code = [], False
    for line in lines:
        if not line.startswith("//"):
            break
        text = line[2:].removeprefix(" ")
        is_code = text.startswith("  ")
        if text and is_code != in_code:
            out = ended(out) + ["```"] + [""] * in_code
            in_code = is_code
        out.append(text.removeprefix("  ") if is_code else text)
    if in_code:
        out = ended(out) + ["```"]
    text = re.sub(r"\n+(Thread safety|Blocking|Errors|Lifetime):", r"\n\n**\1:**", "\n".join(out))
    return "\n\n".join(wrapped(part) for part in text.strip().split("\n\n"))


def wrapped(paragraph):
    """The paragraph; broken anew when a label in bold has made its first line too long."""
    if len(paragraph.splitlines()[0]) <= WIDTH:
        return paragraph
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def ended(lines):
    """The lines without blank ones at their end."""
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


def without_bodies(code):
    """The code with each function's body replaced by a semicolon."""
    body = re.compile(r"(\)(?:\s*(?:const|noexcept|override|final|&{1,2}))*"
                      r"(?:\s*->\s*[\w:<>&\* ]+?)?(?:\s*:\s*[^;{}]*(?:\{[^{}]*\}[^;{}]*)*?)?)\s*\{")
    kept, position = [], 0
    while match := body.search(code, position):
        if is_in_comment(code, match.start()):
            kept.append(code[position:match.end()])
            position = match.end()
            continue
        signature = match[1].split(":", 1)[0] if re.match(r"\)\s*:[^:]", match[1]) else match[1]
        kept += [code[position:match.start()], signature.rstrip(), ";"]
        position = end_of_braces(code, match.end())
        if code[position:position + 1] == ";":
            position += 1
    return "".join(kept) + code[position:]


def is_in_comment(code, position):
    return "//" in code[code.rfind("\n", 0, position) + 1:position]


def end_of_braces(code, position):
    """Behind the brace that closes the one before `position`."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        position += 1
    return position


def without_private(lines):
    """The lines without private members, whose comments are for those who change the class."""
    kept, hidden_at = [], None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if hidden_at is not None and line.strip() and indent < hidden_at:
            hidden_at = None
        if line.strip() == "private:":
            hidden_at = indent
        if hidden_at is None:
            kept.append(line)
    return kept


def declarations_of(text):
    """Everything within namespace lockstep, but namespace detail and forward declarations."""
    inside = text.split("namespace lockstep {\n", 1)
    if len(inside) == 1:
        return ""
    code = inside[1].rsplit("}  // namespace lockstep", 1)[0]
    code = re.sub(r"namespace detail \{.*?\}  // namespace detail\n", "", code, flags=re.DOTALL)
    code = re.sub(r"^(class|struct) \w+;\n", "", code, flags=re.MULTILINE)
    code = without_bodies("\n".join(without_private(code.splitlines())))
    code = code.replace("LOCKSTEP_API ", "")
    code = re.sub(r"\n+(\s*\};)", r"\n\1", code)
    return re.sub(r"\n{3,}", "\n\n", code).strip("\n")


def page_of(room, headers):
    parts = [f"# {room}: reference\n\n"
             "Made from the public headers by `./dev docs`. Edit these instead."]
    for name in headers:
        text = (ROOT / name).read_text()
        parts.append(f"## {name}\n\n{contract_of(text.splitlines())}")
        if declarations := declarations_of(text):
            parts.append(f"```cpp\n{declarations}\n```")
    return "\n\n".join(parts) + "\n"


def index_of(rooms):
    rows = [textwrap.fill(f"- [{room}]({room}.md): " +
                          ", ".join(pathlib.Path(name).stem for name in headers),
                          WIDTH, subsequent_indent="  ")
            for room, headers in rooms.items()]
    title = "# Reference\n\nA page for each room, made from its public headers by `./dev docs`."
    return "\n".join([title, "", *rows]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    check = parser.parse_args().check
    rooms = public_headers()
    pages = {f"{room}.md": page_of(room, headers) for room, headers in rooms.items()}
    pages["README.md"] = index_of(rooms)
    if check:
        there = {path.name: path.read_text() for path in PAGES.glob("*.md")}
        stale = sorted(name for name in pages.keys() | there.keys()
                       if pages.get(name) != there.get(name))
        print("\n".join(f"docs/reference/{name} is stale: ./dev docs" for name in stale))
        return bool(stale)
    PAGES.mkdir(exist_ok=True)
    for path in PAGES.glob("*.md"):
        path.unlink()
    for name, text in pages.items():
        (PAGES / name).write_text(text)
    return False


if __name__ == "__main__":
    sys.exit(main())
