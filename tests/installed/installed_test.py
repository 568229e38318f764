#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs Lockstep, builds a program against the copy with find_package(), and runs it.

  readme         the program and the CMakeLists.txt of README.md, on a small data set, with two
                 ranks
  guide          the programs of docs/guide, each with its ranks
  comm           a program that needs no LibTorch, against the same copy, and the guide's
  moved_torch    programs against a copy that was moved after it was installed, and whose LibTorch
                 is no longer where it was built with it
  without_torch  the same as comm, against a copy that was built without LibTorch
  embedded       a program of a project that adds Lockstep's sources by FetchContent. Its targets
                 for training are configured, and those without LibTorch built
  embedded_full  the same, with a program that needs LibTorch
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from commands import run  # noqa: E402
from small_datasets import write_fashion_mnist, write_image_folder  # noqa: E402
from united_programs import unite  # noqa: E402


def install(build, prefix):
    run("cmake", "--install", build, "--prefix", prefix)
    include = prefix / "include"
    for header in include.rglob("*.h"):
        for name in re.findall(r'#include [<"](lockstep/[^">]+)', header.read_text()):
            if not (include / name).exists():
                sys.exit(f"{header} includes {name}, which is not installed")


def compile_program(folder, prefix, build, *definitions):
    """Compiles with ccache, which knows a program again in another clone with the same headers."""
    ccache = shutil.which("ccache") or ""
    run("cmake", "-G", "Ninja", "-S", folder, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}", *definitions)
    run("cmake", "--build", build, CCACHE_BASEDIR=str(HERE.parents[1]), CCACHE_NOHASHDIR="1")
    return build / "my_program"


def blocks(page, language):
    """Returns the texts between ```LANGUAGE and ``` of a document."""
    return re.findall(f"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def only(texts, page):
    if len(texts) != 1:
        sys.exit(f"{page} has {len(texts)} programs where this test knows of one")
    return texts[0]


def without_comment(program):
    """Returns an example's text without its licence comment."""
    return program[program.index("#include"):]


class Copy:
    """An installed copy, and a project that is built with it."""

    def __init__(self, args, cmake, *definitions):
        self.definitions = definitions
        self.cmake = cmake
        self.lockstep = args.scratch / "prefix" / "bin" / "lockstep"
        self.project, self.build = args.scratch / "project", args.scratch / "build"
        install(args.build, self.lockstep.parents[1])
        self.project.mkdir()
        self.data = args.scratch / "data"
        write_fashion_mnist(self.data / "fashion-mnist")

    def compile(self, program):
        (self.project / "my_program.cpp").write_text(program)
        self.build_sources("my_program.cpp")

    def compile_all(self, programs):
        """Compiles programs, from names to texts, which program(name) then finds."""
        self.build_sources(*unite(programs, self.project))
        for name in programs:
            (self.build / name).symlink_to("my_program")

    def build_sources(self, *sources):
        cmake = self.cmake.replace("my_program.cpp", " ".join(sources))
        (self.project / "CMakeLists.txt").write_text(cmake)
        compile_program(self.project, self.lockstep.parents[1], self.build, *self.definitions)

    def program(self, name):
        return self.build / name

    def start(self, ranks, name="my_program"):
        """Runs the program in its own folder, where it leaves its files."""
        return run(self.lockstep, "run", "-n", ranks, self.program(name), folder=self.data,
                   LOCKSTEP_DATA=str(self.data), OMP_NUM_THREADS="1")


def refused_configuration(folder, prefix, *definitions):
    """Returns CMake's error when it cannot configure `folder`, in one line."""
    return " ".join(run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "refused",
                        f"-DCMAKE_PREFIX_PATH={prefix}", *definitions, fails=True).split())


def expect(part, text):
    if part not in text:
        sys.exit(f"'{part}' is not in what was written")


def readme(args):
    page = args.source / "README.md"
    program = only(blocks(page, "cpp"), page)
    if program != without_comment((args.source / "examples" / "minimal.cpp").read_text()):
        sys.exit("README.md and examples/minimal.cpp have different programs")
    copy = Copy(args, only(blocks(page, "cmake"), page))
    copy.compile(program)
    shown = copy.start(2)
    expect("20/20 steps (100%)", shown)
    expect("samples/s", shown)


def without_progress(text):
    return "".join(line for line in text.splitlines(True) if " steps (" not in line)


def last_word(output):
    """The last word of the ranks; `lockstep run` may report afterwards for which ranks they
    waited."""
    return [line for line in output.splitlines() if line.startswith("[")][-1].split()[-1]


def guide_programs(pages, images):
    """Returns the programs of the guide's pages, from "PAGE-NUMBER" to their text."""
    programs = {f"{page.stem}-{number}": program
                for page in sorted(pages.glob("*.md"))
                for number, program in enumerate(blocks(page, "cpp"))
                if "int main(" in program and "/comm/comm.h" not in program}
    adapt(programs, "images-0", '"imagenet/train"', f'"{images}/train"')
    adapt(programs, "images-0", "1ULL << 30", "1ULL << 24")
    adapt(programs, "checkpoints-0", "++step % 200", "++step % 2")  # The data set is small.
    return programs


def adapt(programs, name, before, after):
    if before not in programs[name]:
        sys.exit(f"{name} does not have {before}")
    programs[name] = programs[name].replace(before, after)


def guide(args):
    pages, images = args.source / "docs" / "guide", args.scratch / "images"
    # All optimizations would take a third of the time of compilation.
    copy = Copy(args, only(blocks(args.source / "README.md", "cmake"), "README.md"),
                "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
    programs = guide_programs(pages, images)
    copy.compile_all(programs)
    write_image_folder(images)
    runs = {
        "checkpoints-0": resumes,
        "compiled-0": lambda copy, name: compiled(args, copy, pages / "compiled.md"),
        "data-1": lambda copy, name: same_results(copy, name, (1, 2, 3), last_word),
        "data-parallel-3": names_shares,
        "plan-0": plans,
        # The output ends with the hash of the weights.
        "shared-parameters-0": lambda copy, name: same_results(copy, name, (1, 2, 4), last_word),
        "stragglers-0": names_straggler,
        "torchscript-0": lambda copy, name: torchscript(args, copy, pages / "torchscript.md"),
    }
    for name in programs:
        if name in runs:
            runs.pop(name)(copy, name)
        elif name.startswith("shards-"):
            same_results(copy, name, (1, 2), without_progress)
        else:
            # The programs of model-parallel.md themselves compare their results with one process.
            copy.start(4 if name.startswith("model-parallel-") else
                       3 if name.startswith("data-parallel-") else 2, name)
    if runs:
        sys.exit(f"the guide has no programs {', '.join(runs)}")


def same_results(copy, name, numbers, result):
    results = {result(copy.start(ranks, name)) for ranks in numbers}
    if len(results) != 1:
        sys.exit(f"{name} differs between {numbers} ranks: {results}")


def names_shares(copy, name):
    shares = copy.start(2, name)
    if not re.search(r"data \d+ %, forward \d+ %, backward \d+ %", shares):
        sys.exit(f"{name} does not say where its time goes: {shares}")


def names_straggler(copy, name):
    verdict = r"others waited .* for rank 1, of which [0-9.]+ in data"
    if not re.search(verdict, straggling := copy.start(2, name)):
        sys.exit(f"the launcher does not name rank 1, which is late in data: {straggling}")


def plans(copy, name):
    copy.start(2, name)
    expect("Best: ", run(copy.lockstep, "plan", "-n", 2, copy.program(name), OMP_NUM_THREADS="1"))


def resumes(copy, name):
    if "resumed" in copy.start(2, name) or 'resumed "checkpoints/' not in copy.start(2, name):
        sys.exit("the second start did not go on from the first one's checkpoint")


def torchscript(args, copy, page):
    """Trains the page's script, which Python makes."""
    python = python_with_torch(args, "torchscript.md makes a script")
    if python is None:
        return
    (copy.data / "my_script.py").write_text(only(blocks(page, "python"), page))
    run(python, "my_script.py", folder=copy.data)
    copy.start(2, "torchscript-0")
    run(python, "-c", "import torch; torch.jit.load('trained.pt')(torch.zeros(2, 1, 28, 28))",
        folder=copy.data)


def python_with_torch(args, purpose):
    """Returns a Python that can import torch, or None."""
    python = args.python or sys.executable
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
        return python
    print(f"skipped: {python} cannot import torch, with which {purpose}")
    return None


def compiled(args, copy, page):
    """Exports the page's model with the installed exporter, and trains it."""
    python = python_with_torch(args, "compiled.md exports a model")
    if python is None:
        return
    (copy.data / "my_model.py").write_text(only(blocks(page, "python"), page))
    command = re.search("^python (-m lockstep_export .*)$", page.read_text(), re.M)[1]
    run(python, *command.split(), folder=copy.data, OMP_NUM_THREADS="1",
        TORCHINDUCTOR_CACHE_DIR=str(args.build / "tests" / "installed" / "inductor"),
        PYTHONPATH=str(copy.lockstep.parents[1] / "share" / "lockstep" / "python"))
    expect("accuracy ", copy.start(2, "compiled-0"))


# One sentence, and no other output.
NEEDS_20 = "Lockstep needs C++20"


def flags_of(package, prefix, *options):
    """Returns pkg-config's output for a package of the copy, as words."""
    folder = next(prefix.rglob(f"{package}.pc")).parent
    return run("pkg-config", *options, "--cflags", "--libs", package,
               PKG_CONFIG_PATH=str(folder)).split()


def compile_by_pkg_config(source, binary, flags, standard="c++20", fails=False):
    compiler = shutil.which("c++") or "g++"
    return run(compiler, f"-std={standard}", "-O1", source, "-o", binary, *flags, fails=fails)


def refused_standard(args, prefix, source, flags):
    """An older standard causes one line of the compiler, and one sentence of CMake."""
    text = compile_by_pkg_config(source, args.scratch / "old", flags, "c++17", fails=True)
    errors = [line for line in text.splitlines() if "error:" in line]
    if len(errors) != 1 or NEEDS_20 not in errors[0]:
        sys.exit(f"C++17 costs these errors: {errors}")
    project = args.scratch / "old_project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.23)\nproject(old LANGUAGES CXX)\n"
        "set(CMAKE_CXX_STANDARD 17)\nfind_package(Lockstep 0.1 REQUIRED COMPONENTS comm)\n")
    expect(f"{NEEDS_20}, but CMAKE_CXX_STANDARD is 17: set(CMAKE_CXX_STANDARD 20)",
           refused_configuration(project, prefix))


def comm(args):
    prefix = args.scratch / "prefix"
    install(args.build, prefix)
    binary = compile_program(HERE / "comm", prefix, args.scratch / "build")
    run(prefix / "bin" / "lockstep", "run", "-n", "2", binary)
    if "liblockstep_comm" in run("ldd", prefix / "bin" / "lockstep-run"):
        sys.exit("the launcher loads comm, of which it needs nothing")

    flags = flags_of("lockstep-comm", prefix)
    source, binary = HERE / "comm" / "main.cpp", args.scratch / "by_pkg_config"
    compile_by_pkg_config(source, binary, flags)
    run(prefix / "bin" / "lockstep", "run", "-n", "2", binary)
    refused_standard(args, prefix, source, flags)

    page = args.source / "docs" / "guide" / "communication.md"
    programs = blocks(page, "cpp")
    if len(programs) != 2:
        sys.exit(f"{page} has {len(programs)} programs where this test knows of two")
    for number, program in enumerate(programs):
        project = args.scratch / f"project_{number}"
        project.mkdir()
        (project / "my_program.cpp").write_text(program)
        (project / "CMakeLists.txt").write_text(only(blocks(page, "cmake"), page))
        binary = compile_program(project, prefix, args.scratch / f"guide_{number}")
        run(prefix / "bin" / "lockstep", "run", "-n", "4", binary)


def torch_of(prefix):
    """Returns the folder of the LibTorch with which the copy was built."""
    config = next(prefix.rglob("LockstepConfig.cmake")).read_text()
    return pathlib.Path(re.search(r'lockstep_locate_torch."(.*)/share/cmake/Torch"', config)[1])


def torch_version(prefix):
    """Returns the minor version of that LibTorch, such as 2.13."""
    config = next(prefix.rglob("LockstepConfig.cmake")).read_text()
    return re.search(r"Lockstep needs LibTorch (\d+\.\d+),", config)[1]


def forget(prefix, folder):
    """Makes the copy search for `folder` at a missing path, as if it had been moved."""
    gone = folder.with_name("-" * len(folder.name))
    for file in prefix.rglob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            if str(folder).encode() in content:
                file.write_bytes(content.replace(str(folder).encode(), str(gone).encode()))


TORCH_PROJECT = """cmake_minimum_required(VERSION 3.23)
project(my_program CXX)
find_package(Lockstep 0.1 REQUIRED)
add_executable(my_program my_program.cpp)
target_link_libraries(my_program PRIVATE Lockstep::lockstep)
"""

SAVES = """#include <ATen/ops/ones.h>
#include <lockstep/checkpoint/safetensors.h>
int main(int, char** argv) { lockstep::save_safetensors(argv[1], {{"a", at::ones({3})}}); }
"""

# It calls no function of LibTorch itself, so a linker omits LibTorch's libraries where it can.
LISTS = """#include <lockstep/checkpoint/checkpointer.h>
int main(int, char** argv) { return lockstep::list_checkpoints(argv[1]).empty() ? 0 : 1; }
"""

# It includes headers by their former paths.
LOGS = """#include <lockstep/comm/comm.h>
#include <lockstep/data/loader.h>
#include <lockstep/observe/run_log/run_log.h>
int main(int, char** argv) {
  auto world = lockstep::init_process_group();
  lockstep::RunLog log(world, {.json = argv[1]});
}
"""


def install_and_move(build, prefix):
    """Installs a copy beside `prefix` and moves it there. No file may contain the first path."""
    first = prefix.with_name("first")
    install(build, first)
    shutil.move(first, prefix)
    for file in prefix.rglob("*"):
        if str(first).encode() in (os.readlink(file).encode()
                                   if file.is_symlink() else file.read_bytes()
                                   if file.is_file() else b""):
            sys.exit(f"{file} names {first}, where the copy no longer is")


OTHER_TORCH = """
extern "C" unsigned long aoti_torch_abi_version() { return 2UL << 56 | 99UL << 48; }
"""


def refuses_other_torch(scratch, binary, version):
    """The program ends with one sentence if the LibTorch that it loads has another version."""
    source, preloaded = scratch / "other_torch.cpp", scratch / "other_torch.so"
    source.write_text(OTHER_TORCH)
    run("c++", "-shared", "-fPIC", source, "-o", preloaded)
    refusal = run(binary, fails=True, LD_PRELOAD=str(preloaded))
    expect(f"this program was built for LibTorch {version} but loads LibTorch 2.99", refusal)


def moved_torch(args):
    prefix, project = args.scratch / "prefix", args.scratch / "project"
    install_and_move(args.build, prefix)
    before = torch_of(prefix)
    forget(prefix, before)
    torch = args.scratch / "torch"
    torch.mkdir()
    for entry in before.iterdir():
        (torch / entry.name).symlink_to(entry)
    project.mkdir()
    (project / "CMakeLists.txt").write_text(TORCH_PROJECT)

    refusal = refused_configuration(project, prefix)
    version = torch_version(prefix)
    expect(f"Lockstep needs LibTorch {version}, with which it was built", refusal)
    expect("pass -DTorch_DIR=DIR", refusal)
    other = args.scratch / "other"
    other.mkdir()
    (other / "TorchConfig.cmake").write_text("set(Torch_FOUND TRUE)\n")
    (other / "TorchConfigVersion.cmake").write_text(
        "set(PACKAGE_VERSION 1.0.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
    expect(f"{other} holds LibTorch 1.0.0: pass -DTorch_DIR=DIR",
           refused_configuration(project, prefix, f"-DTorch_DIR={other}"))

    lockstep, weights = prefix / "bin" / "lockstep", args.scratch / "weights.safetensors"
    for name, program in (("saves", SAVES), ("lists", LISTS)):
        (project / "my_program.cpp").write_text(program)
        binary = compile_program(project, prefix, args.scratch / name,
                                 f"-DTorch_DIR={torch}/share/cmake/Torch")
        libraries = run("ldd", binary)
        for library in ("libtorch_cpu.so", "libc10.so"):
            expect(f"{library} => {torch}/lib/", libraries)
        for library in ("liblockstep.so", "liblockstep_comm.so"):
            expect(str(next(prefix.rglob(library))), libraries)
        for library in ("liblockstep_toolkit", "libarchive", "libjpeg", "libpng", "libwebp"):
            if library in libraries:
                sys.exit(f"a program that links only the core loads {library}")
        run(binary, weights if program == SAVES else project)
        refuses_other_torch(args.scratch, binary, version)

    (project / "my_program.cpp").write_text(SAVES)
    by_pkg_config = args.scratch / "by_pkg_config"
    compile_by_pkg_config(project / "my_program.cpp", by_pkg_config,
                          flags_of("lockstep", prefix, f"--define-variable=torchdir={torch}"))
    expect(f"libtorch_cpu.so => {torch}/lib/", run("ldd", by_pkg_config))
    run(by_pkg_config, weights)

    (project / "logs.cpp").write_text(LOGS)
    logs, record = args.scratch / "logs", args.scratch / "run.json"
    compile_by_pkg_config(project / "logs.cpp", logs, flags_of(
        "lockstep-toolkit", prefix, f"--define-variable=torchdir={torch}"))
    run(lockstep, "run", "-n", "1", logs, record)
    expect('"ended"', record.read_text())

    # The copy's own program finds no LibTorch, reports this, and uses the one in its variable.
    show = (lockstep, "checkpoint", "show", weights)
    refusal = run(*show, fails=True)
    expect("cannot open shared object file", refusal)
    remedy = f"name the folder of LibTorch {version}'s libraries in LD_LIBRARY_PATH"
    expect(remedy, refusal)
    expect("float32 [3]", run(*show, LD_LIBRARY_PATH=str(torch / "lib")))
    expect(remedy, run(lockstep, "doctor", fails=True))


def without_torch(args):
    # Beside the other build, equally deep in the file system, so that ccache finds its units.
    build, prefix = args.build.with_name(
        f"{args.build.name}-without-torch"), args.scratch / "prefix"
    run("cmake", "-S", args.source, "--preset", "no-torch", "-B", build, "-DLOCKSTEP_UNITY=ON",
        "-DLOCKSTEP_BUILD_TESTS=OFF")
    run("cmake", "--build", build)
    install(build, prefix)
    binary = compile_program(HERE / "comm", prefix, args.scratch / "build")
    run(prefix / "bin" / "lockstep", "run", "-n", "2", binary)

    asker = args.scratch / "asker"
    asker.mkdir()
    (asker / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.23)\nproject(asker LANGUAGES CXX)\n"
        "find_package(Lockstep 0.1 REQUIRED COMPONENTS lockstep)\n")
    expect("has no component 'lockstep'", refused_configuration(asker, prefix))


EMBEDDING_PROJECT = """cmake_minimum_required(VERSION 3.23)
project(outer CXX)
include(FetchContent)
FetchContent_Declare(Lockstep GIT_REPOSITORY https://example.com/lockstep.git GIT_TAG main)
FetchContent_MakeAvailable(Lockstep)
if(DEFINED CMAKE_INSTALL_RPATH_USE_LINK_PATH OR CMAKE_LIBRARY_OUTPUT_DIRECTORY)
  message(FATAL_ERROR "Lockstep's settings have changed those of the project around it")
endif()
add_subdirectory(inner)
"""

# The targets that link Lockstep are in another folder than the one that has added it.
EMBEDDED_PROGRAMS = """
foreach(component comm lockstep)
  add_executable(uses_${component} ${component}.cpp)
  target_link_libraries(uses_${component} PRIVATE Lockstep::${component})
  set_property(TARGET uses_${component} PROPERTY CXX_COMPILER_LAUNCHER ${LAUNCHER})
endforeach()
"""


def cached(build, name):
    return re.search(f"^{name}:[A-Z]+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]


def embed(args, target):
    """Builds a program of a project that adds these sources, and returns it."""
    project, inner = args.scratch / "project", args.scratch / "project" / "inner"
    inner.mkdir(parents=True)
    (project / "CMakeLists.txt").write_text(EMBEDDING_PROJECT)
    (inner / "CMakeLists.txt").write_text(EMBEDDED_PROGRAMS)
    shutil.copy(HERE / "comm" / "main.cpp", inner / "comm.cpp")
    (inner / "lockstep.cpp").write_text(SAVES)
    # Beside the other build, with its settings, so that ccache finds its units.
    build = args.build.with_name(f"{args.build.name}-embedded")
    same = [f"-D{name}={cached(args.build, name)}"
            for name in ("CMAKE_BUILD_TYPE", "LOCKSTEP_UNITY", "LOCKSTEP_WARNINGS_AS_ERRORS",
                         "LOCKSTEP_SANITIZE", "Torch_DIR")]
    run("cmake", "-G", "Ninja", "-S", project, "-B", build, *same,
        f"-DFETCHCONTENT_SOURCE_DIR_LOCKSTEP={args.source}",
        f"-DLAUNCHER={shutil.which('ccache') or ''}")
    run("cmake", "--build", build, "--target", target)
    return build / "inner" / target


def embedded(args):
    binary = embed(args, "uses_comm")
    run(args.build / "bin" / "lockstep", "run", "-n", "2", binary)
    old = args.scratch / "old"
    old.mkdir()
    (old / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.23)\nproject(old CXX)\nset(CMAKE_CXX_STANDARD 17)\n"
        f"add_subdirectory({args.source} lockstep EXCLUDE_FROM_ALL)\n")
    expect(f"{NEEDS_20}, but CMAKE_CXX_STANDARD is 17: set(CMAKE_CXX_STANDARD 20)",
           refused_configuration(old, args.scratch))


def embedded_full(args):
    binary = embed(args, "uses_lockstep")
    weights = args.scratch / "weights.safetensors"
    run(binary, weights)
    expect("float32 [3]", run(args.build / "bin" / "lockstep", "checkpoint", "show", weights))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test",
                        choices=["readme", "guide", "comm", "moved_torch", "without_torch",
                                 "embedded", "embedded_full"])
    for folder in ("source", "build", "scratch"):
        parser.add_argument(f"--{folder}", type=pathlib.Path, required=True)
    parser.add_argument("--python", type=pathlib.Path, help="one that has torch")
    args = parser.parse_args()
    shutil.rmtree(args.scratch, ignore_errors=True)
    args.scratch.mkdir(parents=True)
    globals()[args.test](args)


if __name__ == "__main__":
    main()
