#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package costs a program that does not use it next to nothing. `import torch` finds it, and
loads no library of it and few modules; the first group loads the rest. If the package was built for
another version of torch, a use of the backend reports it in one sentence, and all else works."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

from plugin_or_skip import lockstep, torch

BUILT = pathlib.Path(lockstep.__file__).parents[1]
MOST_MODULES = 12  # Small ones, all of this package.


def run(program, package=BUILT, **variables):
    """Runs a program in a new interpreter; returns its exit code and what it printed."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | {"PYTHONPATH": str(package)} | variables)
    return done.returncode, done.stdout


def expect_success(program, **variables):
    code, text = run(program, **variables)
    assert code == 0, f"exit code {code}:\n{text}"


def test_import_loads_no_library():
    expect_success(f"""
        import sys

        def libraries():
            with open("/proc/self/maps") as maps:
                return {{line.split()[-1] for line in maps if ".so" in line}}

        import torch
        assert "lockstep" not in sys.modules
        modules, loaded = set(sys.modules), libraries()
        import lockstep
        new = set(sys.modules) - modules
        assert len(new) <= {MOST_MODULES}, new
        assert all(name.partition(".")[0] == "lockstep" for name in new), new
        assert libraries() == loaded, libraries() - loaded
    """, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_torch_finds_the_backend():
    """The program does not import the package. Its library is loaded with the first group."""
    expect_success("""
        import sys
        import torch.distributed as dist

        assert "lockstep._C" not in sys.modules
        dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
        assert "lockstep._C" in sys.modules
        dist.barrier()
        dist.destroy_process_group()
    """)


def test_questions_load_nothing():
    expect_success("""
        import sys
        import lockstep
        import torch

        assert not lockstep.is_registered(torch.ones(1))
        assert "lockstep._C" not in sys.modules
    """)


def test_the_command_starts_without_torch():
    """The program in bin/ replaces the interpreter, which has not loaded torch."""
    project = (pathlib.Path(__file__).parents[2] / "python" / "pyproject.toml").read_text()
    entry = re.search(r'^\[project.scripts\]\nlockstep = "(.*)"$', project, re.M)[1]
    program = BUILT / "lockstep" / "bin" / "lockstep"
    expect_success(f"""
        import importlib.metadata
        import os
        import sys

        def execv(*arguments):
            loaded = [name for name in sys.modules if name.split(".")[0] in ("torch", "lockstep")]
            assert not loaded, (len(loaded), loaded[:3])
            assert arguments == ({str(program)!r}, [{str(program)!r}, "run", "-n", "2"]), arguments
            sys.exit(0)

        os.execv = execv
        sys.argv = ["lockstep", "run", "-n", "2"]
        importlib.metadata.EntryPoint("lockstep", {entry!r}, "console_scripts").load()()
        sys.exit("the program was not started")
    """)


AS_GLOO = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    assert sys.argv[1:] == ["--epochs", "3"] and __name__ == "__main__", sys.argv
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(interface="lo")]
    own = ProcessGroupGloo(dist.PrefixStore("own", store), 0, 1, options)
    assert type(own).__module__.startswith("torch."), type(own)
    part = dist.group.WORLD.split_group([0], group_name="part")
    for group in (dist.group.WORLD, part):
        assert group._get_backend(torch.device("cpu")).name() == "lockstep"
    tensor = torch.ones(3)
    part.allreduce([tensor]).wait()
    part.shutdown()
    part = dist.group.WORLD.split_group([0], group_name="part")
    part.allreduce([tensor]).wait()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(2)).sum().backward()
    dist.destroy_process_group()
"""


def test_as_gloo():
    """A file and a module. Objects of Gloo's class that the program creates remain Gloo's."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "training.py"
        program.write_text(textwrap.dedent(AS_GLOO))
        for words in ([str(program)], ["-m", "training"]):
            command = [sys.executable, "-m", "lockstep.as_gloo", *words, "--epochs", "3"]
            done = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT,
                                  env=os.environ | {"PYTHONPATH": f"{BUILT}:{folder}"})
            assert done.returncode == 0, (words, done.stdout)


TORCHCOMMS = {"__init__": "def new_comm(*arguments, **options): raise RuntimeError('TorchComms')\n"
                          "def is_backend_built(name): return name == 'gloo'",
              "_comms": "class _BackendWrapper: pass",  # Up to PyTorch 2.14.
              "_backend_wrapper": "class _BackendWrapper: pass",
              "hooks": "class FlightRecorderHook: pass"}


def test_torchcomms():
    """If TorchComms is installed and requested, it cannot create groups of Lockstep: an Error
    reports it. Since PyTorch 2.15, it is requested only for the backends that it has. Its own
    groups do not change. Without TorchComms, the variable has no effect."""
    creates_all = not hasattr(torch.distributed.distributed_c10d, "_torchcomms_handles_backend")
    program = """
        import sys
        import torch.distributed as dist

        dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
        dist.barrier()
    """
    asked = {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}
    for backend, variables, expected in [
            ("lockstep", {}, creates_all and
             "lockstep.Error: init_process_group: TORCH_DISTRIBUTED_USE_TORCHCOMMS=1"),
            ("gloo", {"LOCKSTEP_AS_GLOO": "1"}, "unset it on all ranks"),
            ("gloo", {}, "RuntimeError: TorchComms")]:
        words = program.replace("sys.argv[1]", repr(backend))
        expect_success(words, **asked | {"LOCKSTEP_AS_GLOO": "0"} | variables)
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "torchcomms"
            package.mkdir()
            for name, text in TORCHCOMMS.items():
                (package / f"{name}.py").write_text(text)
            code, text = run(words, f"{BUILT}:{folder}", **asked | variables)
        assert code == bool(expected), text
        assert not expected or expected in text.splitlines()[-1], text


def test_another_torch():
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder) / "python"
        # A removed source leaves its link in the build folder.
        shutil.copytree(BUILT, package, ignore_dangling_symlinks=True)
        versions = package / "lockstep" / "_built_for.py"
        versions.write_text(versions.read_text() + '\nTORCH = "2.99"\n')
        code, text = run("""
            import torch.distributed as dist

            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            dist.new_group(backend="lockstep")
        """, package)
    assert code == 1, text
    reason = text.splitlines()[-1]
    assert "ImportError: lockstep" in reason and "for PyTorch 2.99" in reason, text
    assert "this is PyTorch 2." in reason and "--no-build-isolation" in reason, text


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(name, flush=True)


if __name__ == "__main__":
    main()
