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
        text = re.sub(r"^requires .*\n", "", without_template(self.text).lstrip(), flags=re.M)
        match = re.match(r"(?:class|struct|enum class|enum) (\w+)[^;{]*\{", text)
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
    code = re.sub(r"^namespace \w+ \{\n[^{}]*^\}.*\n", "", code, flags=re.M)
    code = re.sub(r"^namespace (\w+) \{.*?^\}  // namespace \1\n", "", code, flags=re.M | re.S)
    code = re.sub(r"^ *requires requires\([^()]*\) \{.*\}\n", "", code, flags=re.M)
    code = re.sub(r"^ *(template <.*>\n)?(class|struct) \w+;.*\n", "", code, flags=re.MULTILINE)
    code = "\n".join(without_private(without_bodies(code).splitlines()))
    code = re.sub(r"LOCKSTEP_API |^ *\w[^;\n]*(?:,\n[^;\n]*)*= delete;\n", "", code, flags=re.M)
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
    statement = without_template(statement)
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


def without_template(text):
    """The text without the lists of template parameters with which it begins."""
    while text.startswith("template <"):
        text = text[end_of_angles(text):].strip()
    return text


def end_of_angles(statement):
    """Behind the list of parameters with which a template begins."""
    depth = 0
    for position, each in enumerate(statement):
        depth += {"<": 1, ">": -1}.get(each, 0)
        if each == ">" and depth == 0:
            return position + 1
    return len(statement)


def without_bodies(code):
    """The code with each function's body, and a constructor's initialisers, replaced by `;`."""
    plain = blanked(code)
    kept, copied, start, position = [], 0, 0, 0  # `start` is where the current declaration begins.
    parentheses = 0
    while position < len(plain):
        character = plain[position]
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        position += 1
        if character in ";}" and parentheses == 0:
            start = position
        elif character == "{":
            head = plain[start:position - 1]
            end = end_of_braces(plain, position)
            if parentheses or is_initializer(head):
                position = end
            elif is_body(head):
                signature = re.split(r"\n *: |(?<=\))[\w\s&]*?\s:\s", head, maxsplit=1)[0]
                kept += [code[copied:start], code[start:start + len(signature)].rstrip(), ";"]
                position = start = copied = end + (plain[end:end + 1] == ";")
            else:
                start = position
    return "".join(kept) + code[copied:]


def blanked(code):
    """The code with spaces instead of comments and of the contents of strings."""
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])\'',
                  lambda match: " " * len(match[0]), code)


def is_initializer(head):
    """True if the brace behind `head` begins a value, not a body or the members of a type."""
    head = re.sub(r"operator\s*[^\s(]+", "", head)
    head = without_template(head.lstrip())
    in_initializers = re.search(r"\)[\w\s&]*?\s:\s", head) and re.search(r"[\w>]\s*$", head)
    return bool(in_initializers or re.search(r"(?<![=!<>])=(?!=)", outside_parentheses(head))
                or re.search(r"\brequires\s*(\([^()]*\)\s*)?$", head)
                or not ("(" in head or is_type(head)))


def is_body(head):
    return "(" in head and not is_type(head)


def is_type(head):
    """True if members of a class, an enumeration or a namespace follow."""
    head = re.sub(r"^\s*(public|private|protected):", "", head).lstrip()
    head = without_template(head)
    head = re.sub(r"^requires [^\n]*\n\s*", "", head)
    return bool(re.match(r"(class|struct|enum|union|namespace)\b", head))


def outside_parentheses(text):
    while (flat := re.sub(r"\([^()]*\)", "", text)) != text:
        text = flat
    return text


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
        is_shown_again = indent < (hidden_at or 0) or (
            indent == hidden_at and line.strip() in ("public:", "protected:"))
        if line.strip() and is_shown_again:
            hidden_at = None
        if line.strip() == "private:" and hidden_at is None:
            hidden_at = indent
        if hidden_at is None:
            kept.append(line)
    return kept
