# SPDX-License-Identifier: Apache-2.0
"""Limits on the sizes of classes and functions."""

import ast

from tidy import cpp
from tidy.lists import Offence

LARGE_CLASS = 45  # Members: declared fields and functions.
LONG_FUNCTION = 70  # Lines, from the signature to the closing brace.


def large_classes(tree):
    found = []
    for file in tree.files:
        for one in classes_of(file):
            if one.members > LARGE_CLASS:
                found.append(Offence(
                    one.name, f"{file.path}:{one.line}",
                    f"class {one.name} declares {one.members} members: {LARGE_CLASS} are the limit",
                    one.members))
    return found


def long_functions(tree):
    found = []
    for file in tree.files:
        for one in functions_of(file):
            if one.lines > LONG_FUNCTION:
                found.append(Offence(
                    f"{file.path.name}: {one.name}", f"{file.path}:{one.line}",
                    f"{one.name}() has {one.lines} lines: {LONG_FUNCTION} are the limit",
                    one.lines))
    return found


def classes_of(file):
    return parsed(file)[0] if file.is_cpp else []


def functions_of(file):
    if file.is_cpp:
        return parsed(file)[1]
    if file.path.suffix == ".py":
        return [cpp.Function(node.name, node.lineno, node.end_lineno - node.lineno + 1)
                for node in ast.walk(ast.parse(file.text))
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return []


_parsed = {}


def parsed(file):
    """Returns classes and functions of a C++ file; each text is parsed once."""
    if file.text not in _parsed:
        _parsed[file.text] = cpp.parse(file.text)
    return _parsed[file.text]
