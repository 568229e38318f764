# SPDX-License-Identifier: Apache-2.0
"""Tests the generators of the site's pages, and the links of the documents as GitHub shows them."""

import pathlib
import posixpath
import re
import sys
import unittest
import urllib.parse
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs/site"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

import components  # noqa: E402
import declarations  # noqa: E402
import ratio_plot  # noqa: E402
import reference  # noqa: E402
import results  # noqa: E402
import speed  # noqa: E402

HEADER = """\
// Opens things.
//
//   Thing thing;
//
// Errors: misuse of `a`<b>.

#pragma once

namespace lockstep {

class Other;

// A thing. Calls open_thing() and reads docs/guide/data.md.
class LOCKSTEP_API Thing {
 public:
  explicit Thing(int size) : size_(size) { check(); }

  // Opens it.
  void open(std::size_t count = {}) const;
  Work open_async(std::size_t count = {}) const;

  int size() const { return size_; }  // Elements.

 private:
  void hidden();
  int size_;
};

// Makes one.
template <class T>
Thing open_thing(const std::function<void(T)>& use = {});

namespace detail {
void secret();
}  // namespace detail

}  // namespace lockstep
"""


class Reference(unittest.TestCase):
    def setUp(self):
        self.page = reference.page_of("lockstep/comm/thing.h", HEADER)

    def test_names_members_with_anchors(self):
        self.assertEqual(self.page.title, "Thing")
        self.assertEqual(self.page.anchors["Thing::open_async"], "open_async")
        self.assertIn("### open, open\\_async { #open }", self.page.markdown)
        self.assertIn("## open\\_thing { #open_thing }", self.page.markdown)

    def test_leaves_out_what_users_cannot_call(self):
        for hidden in ("hidden", "size_;", "secret", "check()", "class Other", "LOCKSTEP_API"):
            self.assertNotIn(hidden, self.page.markdown)
        self.assertIn("int size() const;  // Elements.", self.page.markdown)

    def test_turns_comments_into_markdown(self):
        self.assertIn("```cpp\nThing thing;\n```\n\n**Errors:** misuse of `a`\\<b>.",
                      self.page.markdown)
        self.assertIn("Calls `open_thing()` and reads [docs/guide/data.md](../../../docs/guide/",
                      self.page.markdown)

    def test_reads_names_of_declarations(self):
        for code, name in {"using Counts = std::vector<int>;": "Counts",
                           "bool operator==(const A& a, const B& b);": "operator==",
                           "void operator()(int i);": "operator()",
                           "constexpr int count = 13;": "count",
                           "std::function<void(int)> act;": "act",
                           "std::optional<int> value = {};": "value",
                           "template <class T, class U>\nT cast(U from);": "cast"}.items():
            self.assertEqual(declarations.Block([], code.split("\n")).names, [name], code)

    def test_removes_bodies_but_not_values(self):
        for code, expected in {
                "A(int i) : i_(i), j_{i} { use(); }": "A(int i);",
                "B b(C c = {}) const noexcept { return {c}; }": "B b(C c = {}) const noexcept;",
                "constexpr auto f = [](int i) { return i; };": None,
                "struct S {\n  int a{1};\n  bool g() { return a; }\n};":
                    "struct S {\n  int a{1};\n  bool g();\n};",
                "template <class T = int>\nvoid t(T a) {\n  a();  // }\n}":
                    "template <class T = int>\nvoid t(T a);",
                "bool operator==(A a) const { return true; }": "bool operator==(A a) const;",
                "enum class E { a, b };": None}.items():
            self.assertEqual(declarations.without_bodies(code), expected or code)

    def test_splits_public_headers_between_declarations(self):
        for header in reference.public_headers():
            for _, blocks in declarations.header_blocks((ROOT / header).read_text()):
                for block in blocks:
                    self.assertRegex(block.text, r"^\S", header)
                    for pair in ("()", "{}"):
                        plain = declarations.blanked(block.text)
                        self.assertEqual(*map(plain.count, pair), f"{header}: {block.text}")

    def test_has_every_public_header_and_type(self):
        generated, pages = reference.generate()
        headers = [page.header for page in pages]
        for umbrella in ("lockstep.h", "comm/comm.h"):
            text = (ROOT / "lockstep" / umbrella).read_text()
            for header in re.findall(r'#include "(lockstep/[^"]+)"', text):
                if not header.endswith("/comm.h"):
                    self.assertIn(header, headers)
        for page in pages:
            self.assertIn(f"[{page.title}]", generated["reference/index.md"])
            text = (ROOT / page.header).read_text()
            text = re.sub(r"(?<=\n\n)namespace (\w+) \{.*?\n\}  // namespace \1", "", text,
                          flags=re.S)
            types = r"^(?:class|struct|enum class) (?:LOCKSTEP_API )?(\w+)[^;]*?\{$"
            for name in re.findall(types, text, re.M):
                self.assertRegex(page.markdown, rf"\n## (class|struct|enum) {name} ", page.header)
        self.assertIn("{ #all_reduce }", generated["reference/comm/process_group.md"])


class Pictures(unittest.TestCase):
    def test_are_well_formed(self):
        for picture in (components.picture(), speed.picture()):
            xml.etree.ElementTree.fromstring(picture)

    def test_show_all_components_and_ratios(self):
        names = {path.name for path in (ROOT / "lockstep").iterdir() if path.is_dir()}
        shown = components.picture()
        self.assertEqual([name for name in sorted(names) if f">{name}<" not in shown], [])
        self.assertEqual(speed.picture().count("<circle"), len(speed.BARS))
        self.assertIn("comm", components.figures())

    def test_of_the_readme_shows_the_current_ratios(self):
        self.assertEqual(speed.IMAGE.read_text(), speed.picture(), "run docs/site/speed.py")

    def test_of_a_benchmark_has_a_row_for_each_ratio(self):
        def spread(middle):
            return {"ratio": middle, "ratio_low": middle / 2, "ratio_high": middle * 2}

        figures = [{"model": "cnn", "batch": batch, "warmup": batch, "rounds": [spread(9)],
                    "ratios": {"a < b": spread(1.5)}, "efficiency": spread(0.9)}
                   for batch in (4, 32)]
        ratios = ratio_plot.ratios_in(figures)
        self.assertEqual([ratio.label for ratio in ratios],
                         ["batch 4, a < b", "batch 4, efficiency",
                          "batch 32, a < b", "batch 32, efficiency"])
        self.assertEqual((ratios[1].median, ratios[1].low, ratios[1].high), (0.9, 0.45, 1.8))
        shown = xml.etree.ElementTree.fromstring(ratio_plot.picture("cases", ratios))
        texts = ["".join(element.itertext()) for element in shown.iter() if
                 element.tag.endswith("text")]
        for text in ("batch 32, a < b", "0.2x", "1x", "5x", "0.9x"):
            self.assertIn(text, texts)

    def test_and_tables_of_benchmarks_show_the_kept_results(self):
        for path in results.PAGES:
            page = path.read_text()
            self.assertEqual(page, results.page_of(page), f"{path}: run bench/results.py tables")
        for name in results.PLOTS:
            picture = (ROOT / f"docs/images/{name}.svg").read_text()
            self.assertEqual(picture, results.plot_of(name), "run bench/results.py tables")

    def test_a_page_that_ends_with_a_table_keeps_one(self):
        page = results.page_of("<!-- results: prune -->\n")
        self.assertEqual(page.count("| `./dev bench prune"), 1)
        self.assertEqual(page, results.page_of(page))

    def test_complain_about_a_ratio_that_is_gone(self):
        with self.assertRaisesRegex(LookupError, "benchmarks.md"):
            speed.ratio_of(speed.BARS[0], "## Collectives on one host\n./dev bench collectives\n")


class Links(unittest.TestCase):
    """GitHub shows the Markdown without the hooks of the site."""

    def documents(self):
        yield from ROOT.glob("*.md")
        yield from (ROOT / "docs").rglob("*.md")

    def test_of_documents_lead_to_files_and_headings(self):
        found = []
        for document in self.documents():
            for link in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
                parts = urllib.parse.urlsplit(link)
                if parts.scheme:
                    continue
                path = posixpath.join(document.parent, parts.path) if parts.path else document
                path = pathlib.Path(posixpath.normpath(path))
                name = document.relative_to(ROOT)
                if not path.exists():
                    found.append(f"{name}: no file {link}")
                elif parts.fragment and parts.fragment not in anchors(path.read_text()):
                    found.append(f"{name}: no heading {link}")
        self.assertEqual(found, [])


def without_code(text):
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors(text):
    """The anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in plain}


class Variables(unittest.TestCase):
    def test_the_launcher_knows_those_of_the_documents(self):
        """It suggests them for misspelled ones."""
        rows = re.findall(r"^\| `LOCKSTEP_(\w+)`", (ROOT / "docs/variables.md").read_text(), re.M)
        source = (ROOT / "tools/run/option_variables.cpp").read_text()
        table = re.search(r"other_variables\[\] = \{(.*?)\}", source, re.S)[1]
        self.assertEqual(sorted(rows), re.findall(r'"(\w+)"', table))


if __name__ == "__main__":
    unittest.main()
