# SPDX-License-Identifier: Apache-2.0
"""Finds the classes and functions of a C++ source by its braces, without a compiler.

It supports the subset of C++ that Lockstep uses. Macros are not expanded; both sides of an #if
count.
"""

import dataclasses
import re

NOT_CODE = re.compile(r'''//[^\n]* | /\*.*?\*/
                          | R"(?P<mark>\w*)\(.*?\)(?P=mark)"
                          | "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
                          | ^[ ]*\#(?:[^\n\\]|\\\n|\\.)*''', re.S | re.M | re.X)
NO_MEMBER = re.compile(r"(using|typedef|friend|static_assert|class|struct|union|enum)\b")
LABEL = re.compile(r"\b(public|protected|private)\s*:(?!:)")
TEMPLATE = re.compile(r"\btemplate\s*<")
ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\balignas\s*\([^()]*\)")


@dataclasses.dataclass
class Class:
    name: str  # With the names of enclosing classes.
    line: int
    members: int = 0  # Declared fields and functions, whatever their access.


@dataclasses.dataclass
class Function:
    name: str
    line: int
    lines: int  # From its signature to its closing brace.


def parse(text):
    """Returns all classes and functions with a body that the text defines, except local ones."""
    parser = _Parser(without_comments(text))
    parser.scope(0, None)
    return parser.classes, parser.functions


def without_comments(text):
    """Returns the text with blanks for comments, literals and preprocessor lines; lines stay in
    place."""
    return NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


class _Parser:
    def __init__(self, code):
        self.code = code
        self.classes, self.functions = [], []
        self._marks = list(re.finditer(r"[{};()]", code))
        self._next = 0

    def scope(self, position, owner):
        """Reads a namespace, or the class `owner`, up to its closing brace, and returns that
        position.

        `position` is where the scope begins, and `start`, later, where the statement begins.
        """
        start, depth = position, 0
        while self._next < len(self._marks):
            mark = self._marks[self._next]
            self._next += 1
            if mark[0] in "()":
                depth += 1 if mark[0] == "(" else -1
            elif depth and mark[0] in "{}":
                self._skip_braces()
            elif mark[0] == "}":
                return mark.end()
            elif mark[0] == ";" and not depth:
                self._count(owner, self.code[start:mark.start()])
                start = mark.end()
            elif mark[0] == "{":
                start = self._open(start, mark, owner)
        return len(self.code)

    def _open(self, start, mark, owner):
        """Returns the position after the block that the brace `mark` opens, or `start` if the
        statement continues."""
        head = bare(self.code[start:mark.start()])
        if re.match(r"(inline\s+)?namespace\b|extern\s*$", head):
            return self.scope(mark.end(), None)
        if re.match(r"(class|struct|union)\b", head):
            return self._class(start, mark, head, owner)
        if is_body(head):
            self._count(owner, self.code[start:mark.start()])
            end = self._skip_braces()
            begin = start + len(self.code[start:]) - len(self.code[start:].lstrip())
            begin += leading_labels(self.code[begin:mark.start()])
            line = self._line(begin)
            self.functions.append(Function(name_of(head), line, self._line(end - 1) - line + 1))
            return end
        self._skip_braces()
        return start

    def _class(self, start, mark, head, owner):
        name = re.split(r"\bfinal\b|:", head.replace("::", "\0"))[0]
        words = re.findall(r"[\w\0]+", re.sub(r"<.*", "", name))
        name = words[-1].replace("\0", "::") if len(words) > 1 else "(unnamed)"
        found = Class(f"{owner.name}::{name}" if owner else name, self._line(mark.start()))
        self.classes.append(found)
        end = self.scope(mark.end(), found)
        semicolon = self.code.find(";", end)  # A field's name may follow it.
        if self.code[end:semicolon].strip():
            self._count(owner, self.code[end:semicolon])
        return end

    def _skip_braces(self):
        """Skips to the place behind the brace that closes the last one read."""
        depth = 1
        while depth and self._next < len(self._marks):
            depth += {"{": 1, "}": -1}.get(self._marks[self._next][0], 0)
            self._next += 1
        return self._marks[self._next - 1].end()

    def _count(self, owner, statement):
        if "[[deprecated" in statement:
            return  # An old name for a release.
        statement = bare(statement)
        if owner and statement and not NO_MEMBER.match(statement):
            owner.members += declarators(statement)

    def _line(self, position):
        return self.code.count("\n", 0, position) + 1


def bare(statement):
    """Returns the statement without labels, attributes, and template<...> before it."""
    text = ATTRIBUTE.sub(" ", LABEL.sub(" ", statement)).strip()
    while match := TEMPLATE.match(text):
        position, depth = match.end(), 1
        while depth and position < len(text):
            depth += {"<": 1, ">": -1}.get(text[position], 0)
            position += 1
        text = text[position:].strip()
    return text


def leading_labels(text):
    match = re.match(r"(\s*(public|protected|private)\s*:(?!:)\s*)+", text)
    return match.end() if match else 0


def is_body(head):
    """True if a brace behind `head` opens a function, not an initializer."""
    if re.search(r"\)\s*(noexcept\s*)?:(?!:)", head):  # A constructor's initializers.
        return head[-1] in ")}"
    if re.search(r"\)[^()]*->[^()]*$", head) and not re.search(r"(?<![=!<>])=(?!=)", head):
        return True
    return bool(re.search(r"(\)|\b(const|noexcept|override|final|mutable|try)|&)$", head)) and (
        "(" in head and not re.search(r"[\w\])]\s*=\s*[\w\[{(]", head.split("(")[0] + "("))


def name_of(head):
    match = re.search(r"(operator\s*\S+?|~?[\w:~]+)\s*\(", head)
    name = match[1] if match else head.split()[-1]
    if name in {"TEST", "TEST_F", "TEST_P", "TYPED_TEST"}:
        return ".".join(re.findall(r"\w+", head)[1:3])
    return name


def declarators(statement):
    """Returns how many names a declaration in a class declares."""
    depth, count, before = 0, 1, ""
    for i, char in enumerate(statement):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or char == ">" and before != "-":
            depth -= 1
        elif char == "," and depth == 0 and not is_body(statement[:i]):
            count += 1
        before = char
    return 1 if re.search(r"\)\s*(noexcept\s*)?:(?!:)", statement) else count
