# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs: they add generated pages, and make links that work on GitHub work on the site.

Documents outside docs/, such as README.md, become pages of the site. A link to any other file or
folder of the repository leads to a page that shows it. In code, names of the public API become
links to the reference.
"""

import html
import pathlib
import posixpath
import re
import sys
import urllib.parse

from mkdocs.structure.files import File

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import components  # noqa: E402
import reference  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md",
             "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
EXAMPLES = "examples"  # Has a page for each file. Pages of other folders only list files.
SHOWN = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".txt": "text", ".md": "markdown"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
FENCE = re.compile(r"^( *)(```+).*?^\1\2[ ]*$", re.M | re.S)
HIDDEN_FROM_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"


class Site:
    """The pages of the current build."""

    def __init__(self):
        self.origins = {}  # From a page's path in docs/ to its file's path in the repository.
        self.names = {}  # From a name of the API to its page and anchor.


site = Site()


def on_config(config):
    """Adds the pages of the reference to the navigation."""
    site.origins.clear()
    site.names.clear()
    generated, pages = reference.generate()
    config["generated_reference"] = generated
    for page in pages:
        for name, anchor in page.anchors.items():
            site.names.setdefault(name, f"{page.uri}#{anchor}")
    section = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    section[2:2] = [{component: [f"reference/{component}/index.md",
                                 *({page.title: page.uri} for page in found)]}
                    for component, found in reference.by_component(pages).items()]
    return config


def on_files(files, config):
    """Adds pages that no file of docs/ contains."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for uri, text in config["generated_reference"].items():
        files.append(File.generated(config, uri, content=text))
        texts[f"docs/{uri}"] = text
    for origin, uri in DOCUMENTS.items():
        texts[origin] = (ROOT / origin).read_text()
        site.origins[uri] = origin
        files.append(File.generated(config, uri, content=texts[origin]))
    for path in sorted(shown_paths(texts)):
        uri = source_uri(path)
        site.origins[uri] = path
        files.append(File.generated(config, uri, content=source_page(path)))
    return files


def on_nav(nav, config, files):
    """The logo leads to the front page, although the page lies in a section."""
    nav.homepage = files.get_file_from_path("index.md").page
    return nav


def shown_paths(texts):
    """Files and folders outside docs/ that documents link to, and all examples."""
    found = {EXAMPLES, *(f"{EXAMPLES}/{name}" for name in files_of(EXAMPLES))}
    for origin, text in texts.items():
        for target in LINK.findall(FENCE.sub("", text)):
            path = resolved(origin, target)
            if path and not path.startswith("docs/") and path not in DOCUMENTS:
                found.add(path)
    return found


def resolved(origin, target):
    """The path of a relative link's target in the repository; None for other links."""
    if urllib.parse.urlsplit(target).scheme or target.startswith(("/", "#", "lockstep::")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if (ROOT / path).exists() else None


def files_of(folder):
    """The sources in a folder and in those below it, from the folder."""
    found = [path for path in (ROOT / folder).rglob("*")
             if path.is_file() and path.suffix in SHOWN and path.name != "CMakeLists.txt"]
    return [str(path.relative_to(ROOT / folder)) for path in sorted(found)]


def source_uri(path):
    return f"sources/{path}/index.md" if (ROOT / path).is_dir() else f"sources/{path}.md"


def source_page(path):
    """Markdown that shows a file, or that lists a folder with the first comment of each file."""
    if (ROOT / path).is_dir():
        rows = [f"| {shown_name(path, name)} | {first_comment(ROOT / path / name)} |"
                for name in files_of(path)]
        return "\n".join([f"# {path}", "", "| file | contents |", "|---|---|", *rows]) + "\n"
    text = (ROOT / path).read_text().rstrip("\n")
    language = SHOWN.get(pathlib.Path(path).suffix, "text")
    return f"{HIDDEN_FROM_SEARCH}# {path}\n\n`````{language}\n{text}\n`````\n"


def shown_name(folder, name):
    return f"[{name}]({name}.md)" if folder == EXAMPLES else f"`{name}`"


def first_comment(file):
    """The first sentence of a file's comment or docstring."""
    lines = [line for line in file.read_text().splitlines()
             if "SPDX" not in line and not line.startswith(("#!", "#include"))]
    text = "\n".join(lines).strip() + "\n"
    if match := re.match(r'"""(.*?)"""', text, re.S):
        text = match[1]
    else:
        comment = re.match(r"(?:(?://|#).*\n)*", text)[0]
        text = re.sub(r"^(//|#) ?", "", comment, flags=re.M)
    sentence = re.split(r"(?<=\.)\s|\n\s*\n|\n  ", text.strip())[0].rstrip(":.")
    return html.escape(" ".join(sentence.split()), quote=False).replace("|", "\\|")


def on_page_markdown(markdown, page, config, files):
    """Replaces links to files outside docs/, and what GitHub shows instead of pictures."""
    uri = page.file.src_uri
    origin = site.origins.get(uri, f"docs/{uri}")
    if not uri.startswith("sources/"):
        markdown = outside_fences(
            lambda text: LINK.sub(lambda link: new_target(uri, origin, link[1]), text), markdown)
    generated = {"components": lambda: figure(components.picture()),
                 "figures": lambda: f"```\n{components.figures()}\n```"}
    return re.sub(r"<!-- generated: (\w+) -->.*?<!-- end -->", lambda mark: generated[mark[1]](),
                  markdown, flags=re.S)


def outside_fences(change, markdown):
    """Applies `change` to everything but fenced code."""
    out, end = [], 0
    for fence in FENCE.finditer(markdown):
        out += [change(markdown[end:fence.start()]), fence[0]]
        end = fence.end()
    return "".join(out) + change(markdown[end:])


def new_target(uri, origin, target):
    path = resolved(origin, target)
    if path is None:
        return target
    if path.startswith("docs/"):
        new = path.removeprefix("docs/")
        new = f"{new}/index.md" if (ROOT / path).is_dir() else new
    else:
        new = DOCUMENTS.get(path) or source_uri(path)
    return posixpath.relpath(new, posixpath.dirname(uri) or ".")


def figure(svg):
    return f'<div class="figure">{svg.strip()}</div>'


# --- Names of the API in code --------------------------------------------------------------------

CODE = re.compile(r"<code>((?:lockstep::)?[A-Za-z_][\w:]*)(\(\))?</code>")
TYPE = re.compile(r'<span class="n">([A-Z]\w+)</span>')


def on_page_content(html, page, config, files):
    """Makes names of the API in code links to the reference."""
    if page.file.src_uri.startswith("sources/"):
        return html

    def target_of(name):
        target = site.names.get(name.removeprefix("lockstep::").removeprefix("nn::"))
        if not target:
            return None
        uri, anchor = target.split("#")
        return f"{files.get_file_from_path(uri).url_relative_to(page.file)}#{anchor}"

    def inline(match):
        name, call = match[1], match[2] or ""
        is_clear = "::" in name or name[0].isupper() or call
        target = target_of(name) if is_clear else None
        return f'<a href="{target}">{match[0]}</a>' if target else match[0]

    def in_fence(match):
        before = re.sub(r"<[^>]*>", "", match.string[max(0, match.start() - 300):match.start()])
        qualifier = re.search(r"([\w:]+)::$", before)
        is_ours = not qualifier or qualifier[1].startswith("lockstep")
        target = target_of(match[1]) if is_ours else None
        return f'<a href="{target}">{match[0]}</a>' if target else match[0]

    parts = re.split(r"(<a .*?</a>|<h\d.*?</h\d>)", html, flags=re.S)
    return "".join(part if i % 2 else TYPE.sub(in_fence, CODE.sub(inline, part))
                   for i, part in enumerate(parts))
