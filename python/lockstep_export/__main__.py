# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m lockstep_export my_model:make --batch 32 --out step.pt2"""

import argparse
import contextlib
import os
import pathlib
import sys
import warnings

import torch

from . import compare, package
from .model import ExportError, Step, batch_dims, example, find
from .trace import trace

OLDEST_TORCH = (2, 12)

EPILOG = """example:
  python -m lockstep_export my_model:make --batch 32 --dynamic-batch --bf16 --out step.pt2

my_model.py, in this folder or in PYTHONPATH:

  class Net(torch.nn.Module):
      def forward(self, images, classes):
          logits = self.layers(images)
          return torch.nn.functional.cross_entropy(logits, classes), logits

  def make(batch):
      return Net(), (torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,)))
"""


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lockstep_export", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compiles a training step, forward and backward, for "
                    "lockstep::CompiledModule, and compares it with the eager model.")
    parser.add_argument("make", metavar="MODULE:FUNCTION",
                        help="make(batch) returns the model and a tuple of inputs; the model's "
                             "forward() returns the loss, or a tuple of the loss and other tensors")
    parser.add_argument("--batch", type=int, required=True, help="samples of a rank and step")
    parser.add_argument("--dynamic-batch", action="store_true",
                        help="any number of samples from 2 on; costs a few per cent of speed")
    parser.add_argument("--bf16", action="store_true",
                        help="compute in bfloat16, by autocast; weights stay float32")
    parser.add_argument("--cpu", choices=("native", "x86-64-v3"), default="native",
                        help="CPUs that the code is for: those with all instruction sets of this "
                             "one, or all since 2013 (Haswell); default: native")
    parser.add_argument("--threads", type=int, default=1,
                        help="of a rank: 1; with 0, as many as the program has, which costs some "
                             "10 per cent of the speed with one")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the package, *.pt2")
    parser.add_argument("--weights", type=pathlib.Path,
                        help="initial weights; default: OUT with the suffix .safetensors")
    options = parser.parse_args(arguments)
    if options.out.suffix != ".pt2":
        parser.error("the name of the package has to end in .pt2")
    if options.batch < (2 if options.dynamic_batch else 1):
        parser.error("--batch has to be positive, with --dynamic-batch at least 2")
    if options.threads < 0:
        parser.error("--threads must not be negative")
    options.weights = options.weights or options.out.with_suffix(".safetensors")
    return options


def export(options):
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ExportError(f"PyTorch {oldest} or newer is needed, not {torch.__version__}")
    for file in (options.out, options.weights):
        require_writable(file)
    make = find(options.make)
    model, inputs = example(make, options.batch)
    dims, tried = [None] * len(inputs), [inputs]
    if options.dynamic_batch:
        tried.append(example(make, options.batch + 1)[1])
        dims = batch_dims(options.batch, *tried)
    step = Step(model, options.bf16)
    package.require_types(step.state())
    step.find_roles(inputs)
    with reason("the model cannot be traced"):
        graphs = {name: trace(step, inputs, dims, name == "train") for name in ("train", "eval")}
    with reason("the model cannot be compiled"):
        files = {name: package.compile_graph(graph, options.cpu, options.threads)
                 for name, graph in graphs.items()}
    for name, graph in graphs.items():
        run = package.load(files[name])
        ends = [example(make, batch)[1] for batch in ends_of(graph.batch, options.batch)]
        for some in (*tried, *ends):
            compare.check(run, step, graph, some, name == "train")
    description = package.signature(step, inputs, dims, graphs, files, options)
    package.write(options.out, files, description, options.weights, step.state())


def require_writable(file):
    """Before the work, not after it."""
    if not os.access(file.absolute().parent, os.W_OK):
        raise ExportError(f"{file} cannot be written: its folder is missing or not writable")


@contextlib.contextmanager
def reason(text):
    """Turns what PyTorch throws into an ExportError."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{text}: {type(error).__name__}: {error}") from error


def ends_of(batch_range, batch):
    """Returns the smallest batch of the range, and the largest up to twice `batch`."""
    if batch_range is None:
        return []
    least, most = batch_range
    return [least, min(most or 2 * batch, 2 * batch)]


def main():
    sys.path.insert(0, os.getcwd())
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch about its own code.
    try:
        export(parse_options())
    except ExportError as error:
        sys.exit(f"lockstep_export: {error}")


if __name__ == "__main__":
    main()
