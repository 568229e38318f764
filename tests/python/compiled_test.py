#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step that lockstep_export has compiled trains as the same model does in eager Python and C++.

The test compares losses, weights and buffers of 20 steps on one rank, and on two with
DistributedDataParallel. Other cases have accumulated gradients, ZeRO, shared parameters, or resume
from a checkpoint. Wrong inputs, packages and models are refused with a reason.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from plain_safetensors import read, write
from pytorch_side import run_ranks
from torch_or_skip import SKIPPED, torch

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "python"
STEPS, BATCH = 20, 8
TOLERANCE = 1e-5
# By case: number of passes whose gradients a step accumulates.
PASSES = {"plain": 1, "accumulate": 2}
# By case: the case with whose results it agrees.
EQUAL = {"eager": "plain", "zero": "plain", "shared": "plain", "resume": "plain"}


def batches(rank):
    """An image for each class, with noise."""
    torch.manual_seed(100)
    pictures = torch.randn(5, 3, 8, 8)
    torch.manual_seed(101 + rank)
    classes = torch.randint(5, (STEPS, 2 * BATCH))
    return {"images": pictures[classes] + torch.randn(STEPS, 2 * BATCH, 3, 8, 8),
            "classes": classes}


def train(rank, ranks, case):
    """Trains in Python; returns losses and the state."""
    from compiled_model import make
    net = make(BATCH)[0]
    ddp = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True) \
        if ranks > 1 else net
    sgd = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1, momentum=0.9)
    data, losses, passes = batches(rank), [], PASSES[case]
    for step in range(STEPS):
        sgd.zero_grad()
        for part in range(passes):
            rows = slice(part * BATCH, (part + 1) * BATCH)
            torch.manual_seed(1000 * step + 10 * part + rank)
            is_last = part + 1 == passes
            if ranks > 1:
                ddp.require_backward_grad_sync = is_last
            loss = ddp(data["images"][step, rows], data["classes"][step, rows])[0]
            loss.backward()
            losses.append(loss.detach())
        sgd.step()
    return {"losses": torch.stack(losses).double(), **net.state_dict()}


def run_rank(rank, folder):
    results = {case: train(rank, 2, case) for case in PASSES}
    torch.save(results, folder / f"theirs.2.{rank}")


def train_in_python(folder):
    torch.save({case: train(0, 1, case) for case in PASSES}, folder / "theirs.1.0")
    run_ranks(2, folder, run_rank)


def export(folder):
    """Runs the exporter as users do."""
    subprocess.run(
        [sys.executable, "-m", "lockstep_export", "compiled_model:make", "--batch", str(BATCH),
         "--dynamic-batch", "--out", str(folder / "step.pt2")],
        env=os.environ | {"PYTHONPATH": f"{SOURCE}:{HERE}", "OMP_NUM_THREADS": "1"}, check=True)


def changed(folder, name, change):
    """Copies the package with another description."""
    with zipfile.ZipFile(folder / "step.pt2") as package, \
            zipfile.ZipFile(folder / name, "w") as copy:
        for info in package.infolist():
            content = package.read(info)
            if info.filename.endswith("extra/lockstep.json"):
                description = json.loads(content)
                change(description)
                content = json.dumps(description).encode()
            copy.writestr(info, content)


def write_broken_packages(folder):
    whole = (folder / "step.pt2").read_bytes()
    (folder / "truncated.pt2").write_bytes(whole[:len(whole) // 2])
    (folder / "empty.pt2").write_bytes(b"")
    torch.save({"a": torch.ones(2)}, folder / "foreign.pt2")
    at = whole.index(b"\x7fELF") + 4096
    (folder / "damaged.pt2").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
    changed(folder, "cpu.pt2", lambda found: found["instruction_sets"].append("avx1024"))
    changed(folder, "torch.pt2", lambda found: found.update(torch="2.1.0+cpu"))
    changed(folder, "format.pt2", lambda found: found.update(format="lockstep-compiled-9"))
    changed(folder, "results.pt2",
            lambda found: [graph.update(outputs=3) for graph in found["graphs"].values()])
    changed(folder, "form.pt2", lambda found: found["inputs"][0].update(order=[0, 0, 1, 2]))


REFUSED = (
    ("make_changing", [], "the compiled step differs from the model"),
    ("make_without_loss", [], "has to return the loss"),
    ("make_odd_batch", ["--dynamic-batch"], "needs one dimension that is the batch"),
    ("make_even_batch", ["--dynamic-batch"], "the model depends on"),
    ("make_in_evaluation", [], "a model in training mode"),
    ("make_counting", [], "changes calls, a buffer that is not persistent"),
    ("make_view", [], "bias is a view"),
    ("make_of_values", [], "the model cannot be traced"),
    ("make_with_text", [], "return tensors, and nothing else"),
    ("make_float8", [], "scales is of torch.float8_e5m2"),
    ("nothing", [], "has no function nothing"))

# By model and options: a part of the description.
ACCEPTED = (
    ("make_from_six_on", ["--dynamic-batch"], {"batch": [6, None]}),
    ("make_up_to_nine", ["--dynamic-batch"], {"batch": [2, 9]}),
    ("make_fine_tuned", [], {"batch": None, "updated": []}),
    ("make_attention", ["--dynamic-batch"], {"batch": [2, None]}),
    ("make", [], {"batch": None}),
    ("make", ["--bf16", "--dynamic-batch", "--threads", "0", "--cpu", "x86-64-v3"],
     {"batch": [2, None]}))


def check_models(folder):
    """The exporter rejects models whose graph has other results, and leaves no file. To save
    time, it runs graphs instead of compiling them."""
    sys.path.insert(0, str(SOURCE))
    from lockstep_export import package
    from lockstep_export.__main__ import export as export_here
    from lockstep_export.__main__ import parse_options
    from lockstep_export.model import ExportError
    package.compile_graph = lambda graph, *_: graph
    package.load = lambda graph: lambda tensors: list(graph.program.module()(*tensors))
    package.digests = lambda *_: {}
    package.package_pt2 = lambda path, aoti_files, extra_files: \
        pathlib.Path(path).write_text(extra_files["lockstep.json"])

    def run(make, options):
        export_here(parse_options([f"compiled_model:{make}", "--batch", str(BATCH), "--out",
                                   str(folder / f"{make}.pt2"), *options]))
    def refuse(make, options, reason):
        try:
            run(make, options)
        except ExportError as error:
            assert reason in str(error), f"{make}: {error}"
        else:
            sys.exit(f"{make} was exported")
        assert not list(folder.glob(f"*{make}.*")), make

    for make, options, reason in REFUSED:
        refuse(make, options, reason)
    for make, options, part in ACCEPTED:
        run(make, options)
        description = json.loads((folder / f"{make}.pt2").read_text())
        train = description["graphs"]["train"]
        assert part.items() <= train.items(), f"{make}: {train}"
        import compiled_model
        state = getattr(compiled_model, make)(BATCH)[0].state_dict().keys()
        names = {name for tensor in description["parameters"] + description["buffers"]
                 for name in tensor["names"]}
        assert names == state, f"{make}: {names ^ state}"
    # Compiled code throws for some models in bfloat16.
    package.load = lambda graph: lambda tensors: torch.ones(2).view(3)
    refuse("make_changing", ["--bf16"], "the compiled step fails, where the model does not")


def compare(folder, ranks, rank):
    ours = {case: read(folder / f"ours.{case}.{ranks}.{rank}", {}) for case in (*PASSES, *EQUAL)}
    theirs = torch.load(folder / f"theirs.{ranks}.{rank}")
    largest = 0
    for case, results in ours.items():
        expected = theirs[EQUAL.get(case, case)]
        assert expected["losses"][-1] < 0.9 * expected["losses"][0], expected["losses"]
        missing = expected.keys() - results.keys() - {"mix.2.weight"}  # Is mix.0.weight.
        assert not missing, f"{case}: no {missing}"
        for name in results:
            difference = (results[name].double() - expected[name].double()).abs().max().item()
            assert difference <= TOLERANCE, f"{case}, {ranks} ranks: {name}: {difference}"
            largest = max(largest, difference)
    for name, tensor in ours["eager"].items():
        difference = (tensor.double() - ours["plain"][name].double()).abs().max().item()
        assert difference <= TOLERANCE, f"eager and compiled in C++: {name}: {difference}"
    for name, tensor in ours["resume"].items():
        assert torch.equal(tensor, ours["plain"][name]), f"resumed: {name} differs"
    print(f"rank {rank} of {ranks}: largest difference {largest:.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--lockstep", required=True)
    arguments = parser.parse_args()
    if not shutil.which("g++"):
        print("skipped: there is no g++, with which lockstep_export compiles")
        sys.exit(SKIPPED)
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for rank in range(2):
            write(folder / f"batches.{rank}", dict(sorted(batches(rank).items())), {})
        export(folder)
        write_broken_packages(folder)
        train_in_python(folder)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
        (folder / "tmp").mkdir()
        for ranks in (1, 2):
            subprocess.run([arguments.lockstep, "run", "-n", str(ranks), arguments.program, folder],
                           env=environment, check=True)
            for rank in range(ranks):
                compare(folder, ranks, rank)
        assert not list((folder / "tmp").iterdir()), "the program has left files"
        check_models(folder)


if __name__ == "__main__":
    main()
