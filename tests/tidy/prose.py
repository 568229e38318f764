# SPDX-License-Identifier: Apache-2.0
"""English that is hard to read: in comments, messages, names of tests, and documents.

A hit is a place to look at, not a proof. tests/tidy/prose.txt has the number of hits of each folder
and rule, which may only become smaller.
"""

import collections
import dataclasses
import re
import subprocess

from tidy.lists import Offence

LONGEST = 25  # Words of a sentence.


@dataclasses.dataclass(frozen=True)
class Rule:
    pattern: re.Pattern
    meaning: str


def words(text, flags=re.I):
    return re.compile(rf"\b({text})\b", flags)


RULES = {
    "opener": Rule(
        re.compile(r"(?:^|(?<=[.!?:;] ))(What|Of|Whoever|Whom|Whose|Nor|Else|For want|In vain|"
                   r"Without which|Who)\b"),
        "a sentence begins with What, Of, Whoever, ..."),
    "odd": Rule(
        words("anew|in vain|for want of|whoever|whichever rank|the like|lest|thereof|therein|"
              "whereof|as yet|but for|save for|none but|not one(?! of)|all the same|at times|"
              "by itself alone|of its own accord|comes? to lie|is at hand|be it|make room|"
              "made room|better news|goes? with|is under way|are under way|no longer than"),
        "words that a reader with English as a second language looks up"),
    "verb": Rule(
        words("say|says|said|tell|tells|told|hear|hears|heard|learns?|learnt|learned of|"
              "knows? better|blames?|notices?"),
        "programs report, notify, return and receive; they do not say, tell and hear"),
    "term": Rule(
        words("rooms?|sub-rooms?|floors?|switchboards?|job pages?|last words|guardians?|strangers?|"
              "newcomers?|misfits?|torn|news|lanes?|pieces?|one copy|given up|gave up|gives? up|"
              "giving up|meets?|met|touch(?:es|ed)?|lent|in charge|wanted|turns?"),
        "a word of our own where the field has one"),
}
LONG = f"sentences of more than {LONGEST} words"

COMMENT_MARKS = {".h": "//", ".cpp": "//", ".c": "//", ".py": "#", ".sh": "#", ".cmake": "#"}


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph: a comment, a message, the name of a test, or prose of a document."""
    first: int  # Line.
    last: int
    text: str


@dataclasses.dataclass(frozen=True)
class Hit:
    path: object
    text: Text
    rule: str
    excerpt: str


def texts_of(file):
    if file.path.suffix == ".md":
        yield from paragraphs(file.lines)
        return
    mark = re.escape(COMMENT_MARKS.get(file.path.suffix, "#"))
    block, first = [], 0
    for number, line in enumerate([*file.lines, ""], 1):
        comment = re.match(rf"\s*{mark}[/!]?\s?(.*)", line)
        if comment and "SPDX" not in line and not line.startswith("#!"):
            first = first if block else number
            block.append(comment[1])
            continue
        if block:
            yield Text(first, number - 1, " ".join(block))
            block = []
        if comment := re.search(rf"[;{{,)]\s+{mark}\s(.*)", line):
            yield Text(number, number, comment[1])
        if file.is_cpp:
            yield from literals_and_names(number, line)


def literals_and_names(number, line):
    for literal in re.findall(r'"((?:[^"\\]|\\.){25,})"', line):
        if " " in literal:
            yield Text(number, number, literal)
    if name := re.match(r"TEST(?:_[FP])?\(\w+, (\w+)\)", line):
        yield Text(number, number, re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=A)(?=[A-Z][a-z])", " ",
                                          name[1]))


def paragraphs(lines):
    """Yields paragraphs and list items of a Markdown document: no code, tables and headings."""
    fenced, block, first = False, [], 0
    for number, line in enumerate([*lines, ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        is_prose = not fenced and line.strip() and not re.match(r"\s*([|#>]|```)", line)
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if block and (item or not is_prose):
            yield Text(first, number - 1, " ".join(block))
            block = []
        if is_prose:
            first = first if block else number
            text = line[item.end():] if item else line
            block.append(re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text.strip())))


def hits_in(text):
    """Yields (rule, excerpt) for a paragraph."""
    for name, rule in RULES.items():
        for found in rule.pattern.finditer(text):
            yield name, text[max(0, found.start() - 30):found.end() + 50]
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        if len(sentence.split()) > LONGEST:
            yield "long", sentence[:90]


def hits(tree):
    for file in tree.files:
        parts = file.path.parts
        if parts[:2] in (("docs", "reference"), ("tests", "tidy")):
            continue  # Generated from headers; lists of words.
        for text in texts_of(file):
            for rule, excerpt in hits_in(text.text):
                yield Hit(file.path, text, rule, excerpt)


def offences(tree):
    """Returns, for the shrinking list, the number of hits of each folder and rule."""
    counts, places = collections.Counter(), {}
    for hit in hits(tree):
        entry = f"{hit.path.parent} {hit.rule}"
        counts[entry] += 1
        places[entry] = f"{hit.path}:{hit.text.first}"
    return [Offence(entry, places[entry], f"{entry}: {count} hits, tests/tidy.py --prose=RULE",
                    count) for entry, count in counts.items()]


def table(tree):
    """Returns the number of hits by rule, and of words."""
    counts = collections.Counter(hit.rule for hit in hits(tree))
    size = sum(len(text.text.split()) for file in tree.files for text in texts_of(file))
    lines = [f"{size} words"]
    meanings = {name: rule.meaning for name, rule in RULES.items()} | {"long": LONG}
    return "\n".join(lines + [f"  {name:7} {counts[name]:5}  {meaning}"
                              for name, meaning in meanings.items()])


def listing(tree, rule, added=None):
    """Returns a line for each hit of a rule, "all" for any; only in the `added` lines if given."""
    lines = []
    for hit in hits(tree):
        span = range(hit.text.first, hit.text.last + 1)
        if rule in (hit.rule, "all") and (added is None or
                                          not added[str(hit.path)].isdisjoint(span)):
            lines.append(f"{hit.path}:{hit.text.first}: {hit.rule}: {hit.excerpt}")
    return "\n".join(lines)


def added_lines(root, commit):
    """Returns the numbers of the lines that were added since a commit, by file."""
    diff = subprocess.run(["git", "diff", "-U0", commit, "--"], cwd=root, check=True, text=True,
                          errors="replace", stdout=subprocess.PIPE).stdout
    added, name = collections.defaultdict(set), None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            name = line[6:]
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            added[name].update(range(first, first + count))
    return added
