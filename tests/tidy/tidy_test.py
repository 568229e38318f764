#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each rule of tests/tidy.py fails on a small made-up tree that breaks it, and on no other."""

import contextlib
import importlib.util
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))  # The program imports the package beside it from there.

from tidy import clang_tidy, cpp, prose, tree  # noqa: E402
from tidy.headers import MOST_INCLUDED, MOST_PUBLIC  # noqa: E402

SPEC = importlib.util.spec_from_file_location("tidy_program", TESTS / "tidy.py")
PROGRAM = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PROGRAM)

HEAD = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
OFFERED = "lockstep_component(lockstep OFFERS {})\n"


def includes(*headers):
    return HEAD + "".join(f'#include "lockstep/{header}"\n' for header in headers)


class MadeUp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, files):
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run_tidy(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            failed = PROGRAM.main(["--root", str(self.root), *arguments])
        return failed, out.getvalue()

    def passes(self, files):
        self.write(files)
        self.assertEqual(self.run_tidy(), (False, "tidy\n"))

    def fails(self, files, *complaints):
        """Asserts that it fails with these complaints and no other."""
        self.write(files)
        failed, said = self.run_tidy()
        self.assertTrue(failed, said)
        self.assertEqual(len(said.splitlines()), len(complaints), said)
        for complaint in complaints:
            self.assertIn(complaint, said)


class Dependencies(MadeUp):
    def test_a_component_includes_those_below_it(self):
        self.passes({"lockstep/base/CMakeLists.txt": OFFERED.format("error.h"),
                     "lockstep/base/error.h": HEAD,
                     "lockstep/train/a.h": includes("base/error.h")})

    def test_no_arrow_leads_up(self):
        self.fails({"lockstep/train/CMakeLists.txt": OFFERED.format("progress.h"),
                    "lockstep/train/progress.h": HEAD,
                    "lockstep/data/a.h": includes("train/progress.h")},
                   "lockstep/data/a.h:3: data may not include train")

    def test_the_launcher_does_not_include_nn(self):
        self.fails({"lockstep/nn/CMakeLists.txt": OFFERED.format("a.h"),
                    "lockstep/nn/a.h": HEAD,
                    "lockstep/launch/a.h": includes("nn/a.h")},
                   "lockstep/launch/a.h:3: launch may not include nn")

    def test_the_core_does_not_include_the_toolkit(self):
        offered = {"lockstep/toolkit/prune/CMakeLists.txt": OFFERED.format("a.h"),
                   "lockstep/toolkit/prune/a.h": HEAD,
                   "lockstep/train/CMakeLists.txt": OFFERED.format("b.h")}
        self.passes(offered | {"lockstep/train/b.h": HEAD,
                               "lockstep/toolkit/lora/c.h": includes("train/b.h")})
        self.fails(offered | {"lockstep/train/b.h": includes("toolkit/prune/a.h")},
                   "lockstep/train/b.h:3: train may not include toolkit")

    def test_a_component_outside_the_table_is_named(self):
        self.fails({"lockstep/attic/a.h": HEAD}, "component 'attic' is not in COMPONENTS")

    def test_no_component_includes_an_umbrella_header(self):
        self.fails({"lockstep/train/a.h": includes("lockstep.h")},
                   "train may not include an umbrella")

    def test_gradients_include_no_strategy(self):
        self.fails({"lockstep/parallel/shard/a.h": HEAD,
                    "lockstep/parallel/gradients/b.h": includes("parallel/shard/a.h")},
                   "parallel/gradients may not include parallel/shard")

    def test_a_strategy_includes_gradients_and_a_strategy_of_the_table(self):
        self.passes({"lockstep/parallel/gradients/a.h": HEAD,
                     "lockstep/parallel/replicate/b.h": HEAD,
                     "lockstep/parallel/shared_parameters/c.h": includes("parallel/gradients/a.h",
                                                                "parallel/replicate/b.h")})

    def test_a_strategy_includes_no_strategy_that_the_table_lacks(self):
        self.fails({"lockstep/parallel/replicate/a.h": HEAD,
                    "lockstep/parallel/shard/b.h": includes("parallel/replicate/a.h")},
                   "parallel/shard may not include parallel/replicate")

    def test_components_without_torch_do_not_include_it(self):
        self.fails({"lockstep/comm/a.h": HEAD + "#include <torch/torch.h>\n"},
                   "lockstep/comm/a.h:3: comm must build without torch")


class Cycles(MadeUp):
    CIRCLE = {"lockstep/comm/shm/a.h": HEAD,
              "lockstep/comm/shm/b.h": includes("comm/tcp/a.h"),
              "lockstep/comm/tcp/a.h": includes("comm/hosts/a.h"),
              "lockstep/comm/hosts/a.h": includes("comm/shm/a.h")}
    KNOWN = ("comm/hosts -> comm/shm\n"
             "comm/tcp -> comm/hosts\n"
             "comm/shm -> comm/tcp\n")

    def test_a_cycle_of_subcomponents_fails_and_is_shown(self):
        self.fails(self.CIRCLE,
                   "lockstep/comm/hosts/a.h:3: a cycle of components: "
                   "comm/hosts -> comm/shm -> comm/tcp -> comm/hosts",
                   "lockstep/comm/tcp/a.h:3: ", "lockstep/comm/shm/b.h:3: ")

    def test_a_known_circle_passes(self):
        self.passes(self.CIRCLE | {"tests/tidy/cycles.txt": self.KNOWN})

    def test_a_new_arrow_in_a_known_circle_fails(self):
        self.fails(self.CIRCLE | {"tests/tidy/cycles.txt": self.KNOWN,
                                  "lockstep/comm/hosts/b.h": includes("comm/tcp/a.h")},
                   "lockstep/comm/hosts/b.h:3: a cycle of components: comm/hosts -> comm/tcp")

    def test_a_known_circle_that_is_gone_fails(self):
        self.fails(self.CIRCLE | {"tests/tidy/cycles.txt": "# Known.\n" + self.KNOWN,
                                  "lockstep/comm/hosts/a.h": HEAD},
                   "tests/tidy/cycles.txt:2: 'comm/hosts -> comm/shm' is mended: delete",
                   "tests/tidy/cycles.txt:3: ", "tests/tidy/cycles.txt:4: ")

    def test_tests_close_no_circle(self):
        test = includes("comm/tcp/a.h").replace("#pragma once\n", "")
        self.passes({"lockstep/comm/tcp/a.h": includes("comm/shm/a.h"),
                     "lockstep/comm/shm/a.h": HEAD,
                     "lockstep/comm/shm/a_test.cpp": test})


class PrivateIncludes(MadeUp):
    FILES = {"lockstep/base/CMakeLists.txt":
             "lockstep_component(lockstep\n  OFFERS error.h # secret.h\n  SOURCES error.cpp)\n",
             "lockstep/base/error.h": HEAD,
             "lockstep/base/secret.h": HEAD,
             "lockstep/comm/a.h": includes("base/error.h", "base/secret.h")}
    LISTED = {"tests/tidy/private_includes.txt": "lockstep/comm/a.h: lockstep/base/secret.h\n"}

    def test_a_new_one_fails(self):
        self.fails(self.FILES, "lockstep/comm/a.h:4: lockstep/base/secret.h is private to base")

    def test_a_listed_one_passes(self):
        self.passes(self.FILES | self.LISTED)

    def test_a_listed_one_that_is_gone_fails(self):
        self.fails(self.FILES | self.LISTED | {"lockstep/comm/a.h": HEAD},
                   "tests/tidy/private_includes.txt:1: "
                   "'lockstep/comm/a.h: lockstep/base/secret.h' is mended")

    def test_tools_have_no_more_rights_than_components(self):
        self.write(self.FILES | self.LISTED)
        self.fails({"tools/main.cpp": includes("base/secret.h")}, "tools/main.cpp:3: ")

    def test_tests_may_look_anywhere(self):
        self.write(self.FILES | self.LISTED)
        self.passes({"lockstep/comm/a_test.cpp": includes("base/secret.h"),
                     "tests/b.cpp": includes("base/secret.h")})

    def test_the_list_shrinks_by_relist_and_grows_only_by_moves(self):
        self.write(self.FILES | {"tests/tidy/private_includes.txt": "# Known.\n"})
        failed, said = self.run_tidy("--relist")
        self.assertTrue(failed)
        self.assertIn("private_includes.txt: refused, these would grow: lockstep/comm/a.h", said)
        self.assertFalse(self.run_tidy("--relist", "--moved")[0])
        self.passes({})
        self.write({"lockstep/comm/a.h": HEAD})
        self.assertFalse(self.run_tidy("--relist")[0])
        self.assertEqual((self.root / "tests/tidy/private_includes.txt").read_text(), "# Known.\n")


class PublicHeaders(MadeUp):
    FILES = {"lockstep/base/CMakeLists.txt":
             "lockstep_component(base HEADERS a.h b.h detail/c.h OFFERS d.h)\n",
             "lockstep/base/a.h": includes("base/b.h", "base/d.h"),
             "lockstep/base/b.h": HEAD, "lockstep/base/detail/c.h": HEAD, "lockstep/base/d.h": HEAD}

    def test_one_that_an_umbrella_reaches_through_another_passes(self):
        self.passes(self.FILES | {"lockstep/comm/comm.h": includes("base/a.h")})
        self.passes(self.FILES | {"lockstep/comm/comm.h": HEAD,
                                  "lockstep/lockstep.h": includes("base/a.h")})

    def test_one_that_no_umbrella_reaches_fails(self):
        self.fails(self.FILES | {"lockstep/lockstep.h": includes("base/b.h")},
                   "lockstep/base/a.h:1: a public header, but not included by lockstep/lockstep.h")

    def test_a_way_through_a_header_that_is_not_installed_does_not_count(self):
        self.fails(self.FILES | {"lockstep/base/a.h": includes("base/d.h"),
                                 "lockstep/base/d.h": includes("base/b.h"),
                                 "lockstep/lockstep.h": includes("base/a.h")},
                   "lockstep/base/b.h:1: a public header, but not included by")

    def test_their_number_has_a_limit(self):
        names = [f"h{i}.h" for i in range(MOST_PUBLIC + 1)]
        self.write({f"lockstep/base/{name}": HEAD for name in names})

        def with_public(public):
            return {"lockstep/comm/comm.h": includes(*(f"base/{name}" for name in public)),
                    "lockstep/base/CMakeLists.txt":
                    "lockstep_component(base HEADERS {})\n".format("\n".join(public))}

        self.passes(with_public(names[:MOST_PUBLIC]))
        self.fails(with_public(names),
                   f"{MOST_PUBLIC + 1} public headers: {MOST_PUBLIC} are the limit")


    def test_headers_of_the_toolkit_do_not_count(self):
        names = [f"h{i}.h" for i in range(MOST_PUBLIC + 1)]
        self.write({f"lockstep/toolkit/prune/{name}": HEAD for name in names})
        self.passes({"lockstep/toolkit.h": includes(*(f"toolkit/prune/{name}" for name in names)),
                     "lockstep/toolkit/prune/CMakeLists.txt":
                     "lockstep_component(toolkit HEADERS {})\n".format("\n".join(names))})

    def test_includes_of_the_core_have_a_limit(self):
        names = [f"h{i}.h" for i in range(MOST_INCLUDED + 1)]
        self.write({f"lockstep/base/{name}": HEAD for name in names})
        self.write({"lockstep/base/CMakeLists.txt": OFFERED.format("\n".join(names))})
        self.passes({"lockstep/lockstep.h": includes(*(f"base/{name}" for name in names[1:]))})
        self.fails({"lockstep/lockstep.h": includes(*(f"base/{name}" for name in names))},
                   f"{MOST_INCLUDED + 1} includes: {MOST_INCLUDED} are the limit")


class Namespaces(MadeUp):
    OFFER = {"lockstep/comm/CMakeLists.txt": OFFERED.format("a.h")}

    @staticmethod
    def header(space, body="class A {};"):
        return HEAD + f"namespace {space} {{\n\n{body}\n\n}}  // namespace {space}\n"

    def test_a_private_header_declares_in_the_namespace_of_its_component(self):
        self.passes({"lockstep/comm/a.h": self.header("lockstep::comm"),
                     "lockstep/comm/shm/b.h": self.header("lockstep::comm::shm")})
        self.fails({"lockstep/comm/a.h": self.header("lockstep"),
                    "lockstep/comm/shm/b.h": self.header("lockstep::shm")},
                   "lockstep/comm/a.h is private: its names belong in lockstep::comm",
                   "lockstep/comm/shm/b.h is private: its names belong in lockstep::comm")

    def test_an_offered_header_does_not(self):
        self.passes(self.OFFER | {"lockstep/comm/a.h": self.header("lockstep")})
        self.fails({"lockstep/comm/a.h": self.header("lockstep::comm")},
                   "other components may include lockstep/comm/a.h: its names belong in lockstep, "
                   "not")

    def test_a_private_header_of_the_toolkit_declares_in_the_namespace_of_its_folder(self):
        self.passes({"lockstep/toolkit/prune/a.h": self.header("lockstep::prune")})
        self.fails({"lockstep/toolkit/prune/a.h": self.header("lockstep::toolkit")},
                   "lockstep/toolkit/prune/a.h is private: its names belong in lockstep::prune")

    def test_forward_declarations_may_be_anywhere(self):
        forward = "class A;  // See a.h.\nstruct B;\nenum class C : int;"
        self.passes(self.OFFER | {"lockstep/comm/a.h": self.header("lockstep::comm", forward),
                                  "lockstep/comm/b.h": self.header("lockstep", forward)})

    def test_a_listed_header_passes_until_it_is_mended(self):
        self.write({"tests/tidy/namespaces.txt": "lockstep/comm/a.h\n"})
        self.passes({"lockstep/comm/a.h": self.header("lockstep")})
        self.fails({"lockstep/comm/a.h": self.header("lockstep::comm")},
                   "namespaces.txt:1: 'lockstep/comm/a.h' is mended: delete this line")


class Sizes(MadeUp):
    LARGE = HEAD + "class Wide {\n" + "".join(f"  int f{i}_;\n" for i in range(46)) + "};\n"

    @staticmethod
    def long_function(lines):
        return HEAD + "void f() {\n" + "  g();\n" * (lines - 2) + "}\n"

    def test_a_class_of_46_members_fails(self):
        self.fails({"lockstep/comm/a.h": self.LARGE},
                   "lockstep/comm/a.h:3: class Wide declares 46 members: 45 are the limit")

    def test_a_listed_class_may_not_grow(self):
        self.write({"tests/tidy/large_classes.txt": "Wide 46\n"})
        self.passes({"lockstep/comm/a.h": self.LARGE})
        self.fails({"lockstep/comm/a.h": self.LARGE.replace("};", "  int more_;\n};")},
                   "declares 47 members: 45 are the limit (at most 46 are allowed")

    def test_a_listed_class_that_is_smaller_or_mended_fails(self):
        self.fails({"lockstep/comm/a.h": self.LARGE,
                    "tests/tidy/large_classes.txt": "Wide 50\nGone 60\n"},
                   "large_classes.txt:1: 'Wide' is down to 46: write so",
                   "large_classes.txt:2: 'Gone' is mended: delete this line")

    def test_a_function_of_71_lines_fails(self):
        self.passes({"lockstep/comm/a.h": self.long_function(70)})
        self.fails({"lockstep/comm/a.h": self.long_function(71)},
                   "lockstep/comm/a.h:3: f() has 71 lines: 70 are the limit")

    def test_a_python_function_of_71_lines_fails(self):
        text = "# SPDX-License-Identifier: Apache-2.0\ndef f():\n" + "    g()\n" * 70
        self.fails({"tests/a.py": text}, "tests/a.py:2: f() has 71 lines")

    def test_a_listed_function_that_is_mended_fails(self):
        self.fails({"lockstep/comm/a.h": self.long_function(70),
                    "tests/tidy/long_functions.txt": "a.h: f 80\n"},
                   "long_functions.txt:1: 'a.h: f' is mended: delete this line")


class Lines(MadeUp):
    def test_a_line_of_101_columns_fails_in_every_kind_of_file(self):
        spdx = "# SPDX-License-Identifier: Apache-2.0\n"
        kinds = {"lockstep/comm/a.h": HEAD + "//", "lockstep/comm/a.cpp": HEAD + "//",
                 "lockstep/comm/CMakeLists.txt": "# ", "cmake/A.cmake": "# ",
                 "tests/a.py": spdx + "# ", "dev": spdx + "# ", "docs/a.md": ""}
        files = {}
        for name, start in kinds.items():
            before, last = start.rpartition("\n")[0::2]
            files[name] = before + "\n" * bool(before) + last + "é" * (101 - len(last)) + "\n"
        self.fails(files, *(f"{name}:{text.count(chr(10))}: 101 columns"
                            for name, text in files.items()))

    def test_100_columns_pass(self):
        self.passes({"docs/a.md": "é" * 100 + "\n"})

    def test_rows_of_tables_and_bare_links_cannot_be_broken(self):
        self.passes({"docs/a.md": "| " + "a " * 60 + "|\n- [text](https://" + "a" * 100 + ")\n"})

    def test_a_link_within_a_long_line_can(self):
        self.fails({"docs/a.md": "a sentence https://" + "a" * 100 + "\n"}, "docs/a.md:1: 119 col")


class Bans(MadeUp):
    def test_what_is_banned_fails_in_the_library_and_not_in_its_tests(self):
        code = HEAD + "void f() { printf(a); }  // printf(\n"
        self.passes({"lockstep/comm/a_test.cpp": code, "examples/a.cpp": code})
        self.fails({"lockstep/comm/a.cpp": code}, "lockstep/comm/a.cpp:3: libraries do not print")

    def test_options_are_read_in_one_place(self):
        code = HEAD + 'const char* a = std::getenv("LOCKSTEP_A");  // getenv(\n'
        self.passes({"lockstep/comm/a_test.cpp": code, "examples/a.cpp": code,
                     "lockstep/base/variables.cpp": code})
        self.fails({"lockstep/comm/a.cpp": code},
                   "lockstep/comm/a.cpp:3: options are read by read_variable()")

    def test_headers_and_sources_name_their_licence(self):
        self.fails({"lockstep/comm/a.h": "int a;\n"}, "a.h:1: no SPDX line", "no #pragma once")


class Launchers(MadeUp):
    SETS = HEAD + ('constexpr Set sets[] = {{"env", "environment", false, "RANK", "SIZE"},\n'
                   '{"pmi", "PMI", true,\n"PMI_RANK", "PMI_SIZE", nullptr}};\n')
    ROWS = ["| env | by hand | RANK, SIZE | LOCAL_RANK |\n",
            "| pmi | mpiexec | PMI_RANK, PMI_SIZE | |\n"]

    def test_the_guide_has_those_that_are_read_in_their_order(self):
        code = {"lockstep/job/launcher_variables.cpp": self.SETS}
        self.passes(code | {"docs/guide/clusters.md": "".join(self.ROWS)})
        for rows in (self.ROWS[:1], self.ROWS[::-1]):
            self.fails(code | {"docs/guide/clusters.md": "".join(rows)},
                       "the table of launchers has [('")


class Cpp(unittest.TestCase):
    def members(self, body):
        return cpp.parse("class A : public B {\n" + body + "};\n")[0][0].members

    def test_fields_and_functions_of_any_access_count(self):
        self.assertEqual(self.members("""
            explicit A(int a) : a_{a}, b_(a) { run({1, 2}); }
          public:
            ~A() = default;
            A& operator=(const A&) = delete;
            template <class T, int n = 2> void f(T a, int b) const noexcept { if (a) { b; } }
          private:
            int a_, b_ = 3;
            std::map<int, std::function<void(int, int)>> c_{{1, {}}};
            alignas(64) std::byte d_[2]{};
        """), 8)

    def test_types_friends_comments_and_members_of_nested_classes_do_not(self):
        self.assertEqual(self.members("""
            using T = int; typedef int U; friend class B; static_assert(true);
            enum class E { a, b }; class C; struct D { int a; int b; };
            // int a;
            /* int b; */
            [[deprecated("renamed")]] int c(int d) { return d; }
        """), 0)

    def test_nested_classes_and_those_defined_elsewhere_have_their_full_names(self):
        classes, _ = cpp.parse("namespace a { struct B { struct C final : D<int> { int c; }; }; }\n"
                               "class LOCKSTEP_API E::F : public G { int f; };")
        self.assertEqual([(one.name, one.members) for one in classes],
                         [("B", 0), ("B::C", 1), ("E::F", 1)])

    def test_functions_are_measured_from_signature_to_brace(self):
        _, functions = cpp.parse('''namespace {
            int a() { return R"(}{)"[0]; }
            std::vector<int>
            B::b(std::function<void()> f) const {
              char c = '}'; const auto g = [] { return 1'000; };
            }
            auto c() -> std::vector<int> {
            }
            constexpr std::array<int, 2> d = {1, (2)};
            const auto e = [](int i) { return i; };
            B::B(int i)
                : a_{i},
                  b_(i) {}
            #define F(x) { \\
              x {
            }
            TEST(Component, DoesThis) {
            }''')
        self.assertEqual([(one.name, one.lines) for one in functions],
                         [("a", 1), ("B::b", 4), ("c", 2), ("B::B", 3), ("Component.DoesThis", 2)])


class Versions(MadeUp):
    ASKS = "find_package(" + "Lockstep {} REQUIRED)\n"  # This file itself requests no version.
    FILES = {"CMakeLists.txt": "project(Lockstep VERSION 0.2.1 LANGUAGES CXX)\n",
             "CHANGELOG.md": "# Changelog\n\n## 0.2.1, not yet released\n\n## 0.1.0\n",
             "packaging/conda/recipe.yaml": 'context:\n  version: "0.2.1"\n',
             "packaging/vcpkg/lockstep/vcpkg.json": '{\n  "version": "0.2.1"\n}\n',
             "README.md": ASKS.format("0.2")}

    def test_all_agree(self):
        self.passes(self.FILES)

    def test_of_the_changelog_the_topmost_counts(self):
        self.fails(self.FILES | {"CHANGELOG.md": "# Changelog\n\n## 0.1.0\n\n## 0.2.1\n"},
                   "CHANGELOG.md:3: version 0.1.0, but CMakeLists.txt says 0.2.1")

    def test_packages_have_it(self):
        self.fails(self.FILES | {"packaging/conda/recipe.yaml": 'context:\n  version: "0.2.0"\n',
                                 "packaging/vcpkg/lockstep/vcpkg.json": "{}\n"},
                   "recipe.yaml:2: version 0.2.0, but", "vcpkg.json:1: no version, which")

    def test_documents_ask_for_it(self):
        self.fails(self.FILES | {"docs/a.md": self.ASKS.format("0.1")},
                   "docs/a.md:1: asks for Lockstep 0.1, but this is 0.2")


class Prose(unittest.TestCase):
    LONG = "It " + "really " * prose.LONGEST + "works."

    def rules_in(self, name, text):
        file = tree.File(pathlib.PurePosixPath(name), text)
        return [(rule, part.first) for part in prose.texts_of(file)
                for rule, _ in prose.hits_in(part.text)]

    def test_comments_are_examined_and_code_is_not(self):
        text = "int what;\n// Of the first rank.\nf();  // It is told at once.\n"
        self.assertEqual(self.rules_in("a.h", text), [("opener", 2), ("verb", 3)])
        self.assertEqual(self.rules_in("a.py", "#!/bin/x\n# SPDX What\n# Anew.\n"), [("odd", 3)])

    def test_a_sentence_may_go_over_several_lines(self):
        half = self.LONG.split()
        text = "// " + " ".join(half[:9]) + "\n// " + " ".join(half[9:]) + "\n"
        self.assertEqual(self.rules_in("a.cpp", text), [("long", 1)])
        self.assertEqual(self.rules_in("a.cpp", "// Short. " * 30), [])

    def test_messages_and_names_of_tests_are_examined(self):
        text = 'f("the ranks are told to end now");\nTEST(Suite, WhatIsLostIsNamed) {}\n'
        self.assertEqual(self.rules_in("a_test.cpp", text), [("verb", 1), ("opener", 2)])

    def test_of_documents_neither_code_nor_tables_are_examined(self):
        text = f"# What\n\n- `anew` {self.LONG}\n- Said.\n\n```\nanew\n```\n| anew |\n"
        self.assertEqual(self.rules_in("a.md", text), [("long", 3), ("verb", 4)])


class ClangTidy(MadeUp):
    """A file is checked again when anything that it reads has changed, and not in another clone."""

    FILES = {".clang-tidy": "Checks: '*'\n", "a.h": "int a();\n",
             "build/a.cpp": '#include "a.h"\n'}

    def key(self, root, files, *flags, tool="16"):
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        clang_tidy.digest_of.cache_clear()
        command = ["c++", f"-I{root}", *flags, "-o", "a.o", "-c", str(root / "build/a.cpp")]
        return clang_tidy.key_of(str(root / "build"), command, tool, root)

    def test_files_with_changed_headers_flags_or_tools_are_checked(self):
        changes = [self.FILES, self.FILES | {"a.h": "int a();  // NOLINT\n"},
                   self.FILES | {".clang-tidy": "Checks: 'a'\n"}]
        keys = [self.key(self.root, files) for files in changes]
        keys += [self.key(self.root, self.FILES, "-O1"), self.key(self.root, self.FILES, tool="17")]
        self.assertEqual(len(set(keys)), 5)
        self.assertEqual(self.key(self.root, self.FILES), keys[0])

    def test_clones_have_the_same_keys_wherever_they_are(self):
        (self.root / "library.h").write_text("int b();\n")
        keys = {self.key(self.root / clone, self.FILES | {
            "build/a.cpp": f'#include "{self.root}/{clone}/a.h"\n'
                           f'#include "{self.root}/library.h"\n'}) for clone in ("a", "z")}
        self.assertEqual(len(keys), 1)


class History(MadeUp):
    def commit(self, *paragraphs):
        subprocess.run(["git", "-C", self.root, "-c", "user.name=A", "-c", "user.email=a@b",
                        "commit", "--quiet", "--allow-empty",
                        *(part for text in paragraphs for part in ("-m", text))], check=True)

    def test_a_commit_says_in_short_what_changes_and_why(self):
        subprocess.run(["git", "init", "--quiet", self.root], check=True)
        self.commit("an old commit " * 9)
        subprocess.run(["git", "-C", self.root, "tag", "start"], check=True)
        self.commit("store: answer while a peer reads", "A slow peer stopped all others.")
        self.assertEqual(self.run_tidy("--history", "start"), (False, "tidy\n"))
        self.commit("s" * 73, "Because.")
        self.commit("Merge branch 'mine'", "Because.")
        self.commit("fixup! store", "Because.")
        self.commit("store: close files")
        failed, said = self.run_tidy("--history", "start")
        self.assertTrue(failed)
        for line, complaint in zip(said.splitlines(), [
                "its subject has 73 characters, of at most 72", "what changes: Merge branch 'mine'",
                "what changes: fixup! store", "no body, which says why"], strict=True):
            self.assertIn(complaint, line)


class Report(MadeUp):
    def test_shows_lines_files_layers_private_includes_and_the_largest_class(self):
        self.write(PrivateIncludes.FILES)
        self.write({"lockstep/comm/shm/b.h": includes("comm/a.h") + "struct B { int b; };\n"})
        failed, said = self.run_tidy("--report")
        self.assertFalse(failed)
        rows = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
        self.assertEqual(rows["comm"], ["8", "2", "4", "2", "1", "B", "1"])
        self.assertEqual(rows["shm"], ["4", "1", "4", "1", "0", "B", "1"])
        self.assertEqual(rows["base"], ["4", "2", "2", "1", "0", "-", "0"])


if __name__ == "__main__":
    unittest.main()
