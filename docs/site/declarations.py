# SPDX-License-Identifier: Apache-2.0
"""Reads the declarations of a public header, with their comments.

Private members, bodies of functions, inner namespaces and forward declarations are left out. The
parser relies on the layout that clang-format enforces; it does not understand C++ in general.
"""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Block:
    """Declarations without a blank line between them, and the comment above the first."""
    comment: list[str]  # Lines without their slashes.
    code: list[str]

    @property
    def text(self):
        return "\n".join(self.code)

    @property
    def names(self):
        """The declared names, without repetitions, in their order."""
        found = [name_of(statement) for statement in statements(self.text)]
        return list(dict.fromkeys(name for name in found if name))

    @property
    def type_name(self):
        """The name of the class, struct or enumeration that this block defines, if it does."""
        match = re.match(r"(?:template <.*>\n)?(?:class|struct|enum class|enum) (\w+)[^;()]*\{",
                         self.text)
        return match and match[1]

    @property
    def has_member_functions(self):
        """True for types whose members are described one by one: those with several functions."""
        functions = [statement for block in self.members() for statement in statements(block.text)
                     if is_function(statement)]
        return not self.text.startswith("enum") and len(functions) > 2

    @property
    def head(self):
        """The declaration of a type up to its members."""
        return re.split(r"\s*\{\n", self.text, maxsplit=1)[0]

    def members(self):
        """The blocks between the braces of a type."""
        lines = re.split(r"\{\n", self.text + "{\n", maxsplit=1)[1].splitlines()
        end = next((i for i, line in enumerate(lines) if line.startswith("}")), 0)
        lines = lines[:end]
        return blocks_of([line.removeprefix("  ") for line in lines])


def header_blocks(text):
    """Returns the blocks of each namespace of a header: pairs of its name and its blocks."""
    pattern = r"^namespace (lockstep(?:::\w+)*) \{\n(.*?)^\}  // namespace \1$"
    return [(match[1], blocks_of(public_lines(match[2])))
            for match in re.finditer(pattern, text, re.M | re.S) if "detail" not in match[1]]


def public_lines(code):
    code = re.sub(r"^namespace (\w+) \{\n.*?^\}  // namespace \1\n", "", code, flags=re.M | re.S)
    code = re.sub(r"^ *requires requires\([^()]*\) \{.*\}\n", "", code, flags=re.M)
    code = re.sub(r"^ *(template <.*>\n)?(class|struct) \w+;.*\n", "", code, flags=re.MULTILINE)
    code = without_bodies("\n".join(without_private(code.splitlines())))
    code = re.sub(r"LOCKSTEP_API |^.* = delete;\n", "", code, flags=re.M)
    return re.sub(r"\n+(\s*\};)", r"\n\1", code).splitlines()


def blocks_of(lines):
    """Splits the lines of a namespace or of a class into blocks."""
    found, comment, code, depth = [], [], [], 0

    def end_block():
        if code and not code[0].startswith("friend "):
            found.append(Block(list(comment), list(code)))
        comment.clear()
        code.clear()

    for line in lines:
        is_comment = line.startswith("//")
        if depth == 0 and (not line.strip() or re.match(r" ?(public|protected):$", line)):
            end_block()
        elif depth == 0 and is_comment:
            if code:
                end_block()
            comment.append(line[2:].removeprefix(" "))
        else:
            code.append(line)
            plain = without_comments(line)
            depth += sum(plain.count(each) for each in "{(") - sum(map(plain.count, "})"))
    end_block()
    return found


def without_comments(code):
    """The code without comments and the contents of strings."""
    return re.sub(r"//.*", "", re.sub(r'"(\\.|[^"\\])*"|\'[{}()]\'', '""', code))


def statements(code):
    """The declarations of a block, each in one line and without default values in braces."""
    code = " ".join(without_comments(code).split())
    while (flat := re.sub(r"\{[^{}]*\}", "@", code)) != code:
        code = flat
    return [each.strip() for each in re.split(r"[;]|(?<=\))@", code) if each.strip()]


def is_function(statement):
    return "(" in statement and not statement.startswith(("using ", "enum ", "class ", "struct "))


def name_of(statement):
    """The name that a statement declares; empty if there is none."""
    while statement.startswith("template <"):
        statement = statement[end_of_angles(statement):].strip()
    if match := re.match(r"TORCH_MODULE\w*\((\w+)", statement):
        return match[1]
    if match := re.match(r"(?:using|class|struct|enum class|enum|concept) (\w+)", statement):
        return match[1]
    statement = re.sub(r"\b(explicit|decltype|noexcept|alignas|requires)\s*\([^()]*\)", "",
                       statement)
    while (flat := re.sub(r"<[^<>]*>", "", statement)) != statement and "operator" not in flat:
        statement = flat
    if match := re.search(r"(operator[^(]*(?:\(\))?|~?\w+)\s*\(", statement):
        return match[1]
    match = re.match(r"[^=@]*?(\w+)\s*(?:[=@\[].*)?$", statement)
    return match[1] if match else ""


def end_of_angles(statement):
    """Behind the list of parameters with which a template begins."""
    depth = 0
    for position, each in enumerate(statement):
        depth += {"<": 1, ">": -1}.get(each, 0)
        if each == ">" and depth == 0:
            return position + 1
    return len(statement)


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
