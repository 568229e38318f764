#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A framework trains on two ranks of Lockstep as on two of Gloo: the same bits in all losses,
weights and metrics. Lockstep is chosen by its name, by a group that the program has made before, as
far as the framework allows each, and by LOCKSTEP_AS_GLOO=1.

frameworks_test.py NAME --lockstep LOCKSTEP --frameworks FOLDER
"""

import argparse
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from plugin_or_skip import torch
from torch_or_skip import SKIPPED

HERE = pathlib.Path(__file__).resolve().parent / "frameworks"
PATIENCE = 500  # Seconds.


def pinned(name):
    """Returns the framework's requirement in versions.txt, such as "timm==1.0.31"."""
    lines = (HERE / "versions.txt").read_text().splitlines()
    words, = (line.split() for line in lines if line.split()[:1] == [name])
    return next(word for word in words[1:] if word != "--no-deps")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def version_in(folder, name):
    """Returns the version that is installed; skips the test without it."""
    packages, = (folder / "lib").glob("python*/site-packages") if folder.exists() else (folder,)
    found = {known.name.lower(): known.version
             for known in importlib.metadata.distributions(path=[str(packages)])}
    package, _, version = pinned(name).partition("==")
    installed = found.get(package.partition("[")[0])
    if installed is None:
        skip(f"{package} {version} is not installed; ./dev test --long does so, if PyPI has it")
    if installed != version:
        skip(f"{package} {installed} is installed, but the test is for {version}; remove {folder}")
    return version


def start(name, options, results, as_gloo):
    """Runs the framework's program on two ranks, under `lockstep run` or under torchrun; Ray starts
    them itself."""
    python = options.frameworks / "bin" / "python"
    launcher = [options.lockstep, "run", "-n", "2", python]
    if as_gloo:
        launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if name == "ray":
        launcher = [python]
    known = os.environ | {"FRAMEWORK_RESULTS": str(results), "HF_HUB_OFFLINE": "1",
                          "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    known["PYTHONPATH"] = f"{HERE}:{os.environ['PYTHONPATH']}"
    done = subprocess.run([*map(str, launcher), str(HERE / f"{name}_ranks.py")],
                          env=known | ({"LOCKSTEP_AS_GLOO": "1"} if as_gloo else {}), text=True,
                          cwd=results, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=PATIENCE)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout[-8000:]}"


def results_in(folder):
    """Returns, by rank and way, what the ranks have written."""
    found = {0: {}, 1: {}}
    for file in folder.glob("*.[01]"):
        found[int(file.suffix[1:])] |= torch.load(file)
    return found


def compare(found):
    """Checks that all ways give Gloo's bits. Returns the ways and the number of tensors."""
    tensors = 0
    for rank, of_rank in found.items():
        expected = of_rank.pop("gloo")
        assert of_rank and expected, f"rank {rank} has no results"
        for way, values in of_rank.items():
            assert values.keys() == expected.keys(), (rank, way)
            for key, value in values.items():
                assert torch.equal(value, expected[key]), (
                    f"rank {rank}, {way}: {key} is {value}, with Gloo {expected[key]}")
                tensors += 1
    assert found[0].keys() == found[1].keys()
    return sorted(found[0]), tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--lockstep", type=pathlib.Path, required=True)
    parser.add_argument("--frameworks", type=pathlib.Path, required=True)
    options = parser.parse_args()
    version, begun = version_in(options.frameworks, options.name), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for as_gloo in (False, True):
            start(options.name, options, pathlib.Path(folder), as_gloo)
        ways, tensors = compare(results_in(pathlib.Path(folder)))
    assert "as_gloo" in ways and len(ways) > 1, ways
    print(f"ran: {options.name} {version}: by {', '.join(ways)}, {tensors} tensors with Gloo's "
          f"bits, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
