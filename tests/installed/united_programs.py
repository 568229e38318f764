# SPDX-License-Identifier: Apache-2.0
"""Compiles many programs as one, whose name at its start selects which of them runs.

Reading LibTorch's headers takes most of a program's compilation. Programs that include the same of
our headers and LibTorch's share a source, each in a namespace of its own."""

import itertools
import re

MOST_IN_A_SOURCE = 12

SELECT = """#include <filesystem>
#include <map>
#include <string>

{declarations}
int main(int, char** argv) {{
  const std::map<std::string, int (*)()> programs = {{
{table}  }};
  return programs.at(std::filesystem::path(argv[0]).filename())();
}}
"""


def split(program):
    """Returns the lines that include headers, and the others, with main() as a function run()."""
    is_include = re.compile(r"#include .*\n")
    before, main = is_include.sub("", program).split("int main() {\n")
    if main.count("\n}\n") != 1:
        raise SystemExit(f"main() is not the program's end:\n{program}")
    return (is_include.findall(program),
            before + "int run() {\n" + main.removesuffix("}\n") + "  return 0;\n}\n")


def unite(programs, folder):
    """Writes the sources for `programs`, from names to texts, and returns their file names."""
    namespaces = {name: re.sub(r"\W", "_", name) for name in programs}

    def headers(name):
        return sorted(line for line in split(programs[name])[0] if "/" in line)

    sources = []
    for _, group in itertools.groupby(sorted(programs, key=headers), headers):
        group = list(group)
        while group:
            batch, group = group[:MOST_IN_A_SOURCE], group[MOST_IN_A_SOURCE:]
            includes = dict.fromkeys(line for name in batch for line in split(programs[name])[0])
            bodies = (f"namespace {namespaces[name]} {{\n{split(programs[name])[1]}}}\n"
                      for name in batch)
            sources.append(f"programs_{len(sources)}.cpp")
            (folder / sources[-1]).write_text("".join(includes) + "\n" + "\n".join(bodies))
    declarations = "".join(f"namespace {space} {{\nint run();\n}}\n"
                           for space in namespaces.values())
    table = "".join(f'      {{"{name}", {space}::run}},\n' for name, space in namespaces.items())
    (folder / "select.cpp").write_text(SELECT.format(declarations=declarations, table=table))
    return [*sources, "select.cpp"]
