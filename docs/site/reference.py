# SPDX-License-Identifier: Apache-2.0
"""Writes the API reference in Markdown, from the public headers.

Each public header has a page, with its contract, its types and their members; each component has a
page that lists its headers.
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "tests")]

from declarations import header_blocks  # noqa: E402
from tidy.tree import Tree  # noqa: E402

TO_ROOT = "../../../"  # From docs/reference/COMPONENT, where these pages would lie.
UMBRELLAS = ("lockstep/lockstep.h", "lockstep/toolkit.h", "lockstep/comm/comm.h")


@dataclasses.dataclass
class Page:
    header: str  # From the root of the repository, as in an #include.
    title: str
    summary: str  # The first sentence of the header.
    markdown: str
    anchors: dict  # Each name, such as "ProcessGroup::all_reduce", and its anchor.

    @property
    def component(self):
        return self.header.split("/")[1]

    @property
    def uri(self):
        return f"reference/{self.component}/{pathlib.Path(self.header).stem}.md"


def public_headers():
    """The public headers, in the order of their names."""
    return sorted(header for header in Tree(ROOT).public_headers - set(UMBRELLAS)
                  if "/detail/" not in header)


def umbrella_of(header):
    return UMBRELLAS[header.startswith("lockstep/toolkit/")]


def pages():
    return [page_of(header, (ROOT / header).read_text()) for header in public_headers()]


def page_of(header, text):
    namespaces = header_blocks(text)
    stem = pathlib.Path(header).stem
    types = [block.type_name for _, blocks in namespaces for block in blocks if block.type_name]
    title = next((name for name in types if name.lower() == stem.replace("_", "")), f"{stem}.h")
    contract = prose(opening(text.splitlines()))
    writer = Writer(title)
    writer.add(f"# {title}", contract,
               f"```cpp\n#include <{header}>  // or <{umbrella_of(header)}>\n```",
               f"Source: [{header}]({TO_ROOT}{header})")
    for namespace, blocks in namespaces:
        for block in blocks:
            if block.type_name:
                writer.add_type(block, namespace)
            else:
                writer.add_block(block, "", "##")
    summary = re.split(r"(?<=[.:]) |\n\n|\n```", contract)[0].rstrip(".:")
    return Page(header, title, " ".join(summary.split()), writer.text(), writer.anchors)


class Writer:
    """Collects the parts of a page, and gives each name an anchor."""

    def __init__(self, title):
        self.title = title
        self.anchors = {}
        self._parts = []
        self._used = set()

    def add(self, *parts):
        self._parts += [part for part in parts if part]

    def text(self):
        return "\n\n".join(self._parts) + "\n"

    def add_type(self, block, namespace):
        name = block.type_name
        kind = re.search(r"class|struct|enum", block.text)[0]
        anchor = self._anchor(name, name)
        self.add(f"## {kind} {name} {{ #{anchor} }}", self._holders(block), prose(block.comment))
        if not block.has_member_functions:
            self.add(code(block.text))
            return
        self.add(code(f"// In namespace {namespace}.\n{block.head};"))
        for member in block.members():
            self.add_block(member, name, "###")

    def _holders(self, block):
        """Names the holders that TORCH_MODULE declares below a class."""
        names = re.findall(r"^TORCH_MODULE\w*\((\w+)\);", block.text, re.M)
        marks = "".join(f'<a id="{self._anchor(name, name)}"></a>' for name in names)
        return marks and f"{marks}Programs use its holder, " + ", ".join(
            f"`{name}`" for name in names) + "."

    def add_block(self, block, owner, level):
        """Adds a heading with the names of the block, its comment and its code."""
        names = [name for name in block.names if not name.startswith("~")] or block.names
        if not names:
            self.add(prose(block.comment), code(block.text))
            return
        shown = [f"{owner} (constructor)" if name == owner else name for name in names]
        first, *others = [self._anchor(name, f"{owner}::{name}" if owner else name)
                          for name in names]
        heading = ", ".join(escaped(name) for name in shown)
        marks = "".join(f'<a id="{anchor}"></a>' for anchor in others)
        self.add(f"{level} {heading} {{ #{first} }}", marks, prose(block.comment),
                 code(block.text))

    def _anchor(self, name, full_name):
        """The name, or the full name if another one on this page has it."""
        plain = re.sub(r"\W", "", name) or "operator"
        options = [plain, re.sub(r"\W+", ".", full_name),
                   *(f"{plain}-{i}" for i in range(2, 99))]
        anchor = next(each for each in options if each not in self._used)
        self._used.add(anchor)
        self.anchors.setdefault(full_name, anchor)
        return anchor


def code(text):
    return f"```cpp\n{text}\n```"


def opening(lines):
    """The comment with which a header begins."""
    found = []
    for line in lines:
        if not line.startswith("//"):
            break
        found.append(line[2:].removeprefix(" "))
    return found


def prose(lines):
    """A comment as Markdown: indented lines are code, and names of functions look like code."""
    lines = [line for line in lines if not line.startswith("---")]
    out, in_code = [], False
    for line in lines:
        is_code = line.startswith("  ") if line else in_code
        if is_code != in_code:
            out += ["```cpp"] if is_code else ["```", ""]
            out[-1:-1] = [""] if is_code else []
            in_code = is_code
        out.append(line.removeprefix("  ") if is_code else marked_up(line))
    if in_code:
        out.append("```")
    text = re.sub(r"\n+(?=(Thread safety|Blocking|Errors|Lifetime):)", "\n\n", "\n".join(out))
    text = re.sub(r"(\A|\n\n)(Thread safety|Blocking|Errors|Lifetime):", r"\1**\2:**", text)
    return re.sub(r"\n+```(\n|\Z)", r"\n```\1", text).strip()


def marked_up(line):
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else marked_up_text(part) for part in parts)


def marked_up_text(text):
    """Escapes Markdown; marks calls as code, and documents as links."""
    pattern = r"(docs/[\w/-]+\.md)|((?<![\w/])[A-Za-z_][\w:.]*\(\))|([^\s,;.()]+_[\w]+)|([<*&])"

    def replaced(match):
        document, call, name, special = match.groups()
        if document:
            return f"[{document}]({TO_ROOT}{document})"
        return f"\\{special}" if special and special != "&" else (
            "&amp;" if special else f"`{call or name}`")
    return re.sub(pattern, replaced, text)


def escaped(name):
    return re.sub(r"([<>*&_\[\]])", r"\\\1", name)


def component_page(component, pages_of_component):
    rows = [f"| [{page.title}]({pathlib.Path(page.uri).name}) | {cell(page.summary)} |"
            for page in pages_of_component]
    return "\n".join([f"# {component}", "", f"Public headers of `lockstep/{component}/`.", "",
                      "| page | provides |", "|---|---|", *rows]) + "\n"


def cell(text):
    return text.replace("|", "\\|")


def index_page(components):
    """The page of all components and names."""
    out = ["# API reference", "",
           "`./dev docs` makes these pages from the public headers. `lockstep/lockstep.h` includes",
           "those of the core, and `lockstep/toolkit.h` those of `toolkit` too. Programs without",
           "LibTorch include `lockstep/comm/comm.h`.", "",
           "| component | pages |", "|---|---|"]
    for component, found in components.items():
        links = ", ".join(f"[{page.title}]({page.uri.removeprefix('reference/')})"
                          for page in found)
        out.append(f"| [{component}]({component}/index.md) | {links} |")
    return "\n".join(out) + "\n"


def names_page(all_pages):
    """The page of all names in alphabetical order."""
    entries = sorted({(name.split("::")[-1], name,
                       f"{page.uri.removeprefix('reference/')}#{anchor}")
                      for page in all_pages for name, anchor in page.anchors.items()},
                     key=lambda entry: (entry[0].lower(), entry[1]))
    out, letter = ["# All names"], ""
    for short, name, target in entries:
        if short.startswith(("~", "operator")) or short == name.split("::")[0] != name:
            continue
        if short[0].upper() != letter:
            letter = short[0].upper()
            out += ["", f"## {letter}", ""]
        owner = f" ({name.rsplit('::', 1)[0]})" if "::" in name else ""
        out.append(f"- [`{short}`]({target}){owner}")
    return "\n".join(out) + "\n"


def by_component(all_pages):
    components = {}
    for page in all_pages:
        components.setdefault(page.component, []).append(page)
    return components


def generate():
    """Returns all pages of the reference as Markdown, by their path in the site's sources."""
    found = pages()
    components = by_component(found)
    out = {page.uri: page.markdown for page in found}
    assert len(out) == len(found), "two public headers of a component have the same name"
    for component, of_component in components.items():
        out[f"reference/{component}/index.md"] = component_page(component, of_component)
    out["reference/index.md"] = index_page(components)
    out["reference/names.md"] = names_page(found)
    return out, found
