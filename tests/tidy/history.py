# SPDX-License-Identifier: Apache-2.0
"""Subjects and bodies of commits: one change in at most 72 characters, and why it was made."""

import re
import subprocess

LONGEST_SUBJECT = 72

# Git's own subjects.
UNNAMED = re.compile(r"(fixup|squash|amend)! |Merge (remote-tracking )?branch(es)? |Merge commit ")


def complaints(root, since):
    """Yields the broken rules of the commits since `since`."""
    log = subprocess.run(["git", "-C", root, "log", "--reverse", "--format=%h%x00%s%x00%b%x01",
                          f"{since}..HEAD"], check=True, text=True, stdout=subprocess.PIPE).stdout
    for commit in log.split("\x01")[:-1]:
        name, subject, body = commit.lstrip("\n").split("\0")
        if len(subject) > LONGEST_SUBJECT:
            yield f"{name}: its subject has {len(subject)} characters, of at most {LONGEST_SUBJECT}"
        if UNNAMED.match(subject):
            yield f"{name}: its subject does not say what changes: {subject}"
        if not body.strip():
            yield f"{name}: no body, which says why"
