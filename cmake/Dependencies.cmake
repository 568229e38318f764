# All external dependencies, each found once.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
# The interfaces of our libraries name this target. A project that has added Lockstep by
# FetchContent or add_subdirectory() therefore needs it in its own folders, too.
get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
if("Threads::Threads" IN_LIST imported)
  set_property(TARGET Threads::Threads PROPERTY IMPORTED_GLOBAL TRUE)
endif()
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)

# hwloc 2.8 or later, for the resources that cores share.
find_path(LOCKSTEP_HWLOC_DIR hwloc.h REQUIRED)
find_library(LOCKSTEP_HWLOC_LIBRARY hwloc REQUIRED)
add_library(hwloc::hwloc UNKNOWN IMPORTED)
set_target_properties(hwloc::hwloc PROPERTIES IMPORTED_LOCATION ${LOCKSTEP_HWLOC_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_HWLOC_DIR})

# ISA-L, for CRC-32C in components with LibTorch.
find_path(LOCKSTEP_ISAL_DIR isa-l/crc.h)
find_library(LOCKSTEP_ISAL_LIBRARY isal)
if(LOCKSTEP_ISAL_DIR AND LOCKSTEP_ISAL_LIBRARY)
  add_library(isal::isal UNKNOWN IMPORTED)
  set_target_properties(isal::isal PROPERTIES IMPORTED_LOCATION ${LOCKSTEP_ISAL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_ISAL_DIR})
elseif(LOCKSTEP_WITH_TORCH)
  message(FATAL_ERROR "Lockstep needs ISA-L, Debian's libisal-dev, for checkpoints.")
endif()

# Only xxHash's header is used.
find_path(LOCKSTEP_XXHASH_DIR xxhash.h REQUIRED)
add_library(xxhash::header INTERFACE IMPORTED)
target_include_directories(xxhash::header INTERFACE ${LOCKSTEP_XXHASH_DIR})

# MPI, for the engine and for comparisons, without its obsolete C++ classes. Debian installs mpicxx
# with mpirun but without the headers; find_package(MPI) then fails even if MPI is optional. A cross
# build does not use this machine's MPI.
if(NOT CMAKE_CROSSCOMPILING)
  find_program(LOCKSTEP_MPICXX mpicxx)
endif()
if(LOCKSTEP_MPICXX)
  execute_process(COMMAND ${LOCKSTEP_MPICXX} -fsyntax-only -include mpi.h -x c++ /dev/null
                  RESULT_VARIABLE mpicxx_result OUTPUT_QUIET ERROR_QUIET)
endif()
if(LOCKSTEP_MPICXX AND mpicxx_result EQUAL 0)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
endif()

# WebP images are decoded if libwebp is installed.
add_library(webp::optional INTERFACE IMPORTED)
find_path(LOCKSTEP_WEBP_DIR webp/decode.h)
find_library(LOCKSTEP_WEBP webp)
if(LOCKSTEP_WEBP_DIR AND LOCKSTEP_WEBP)
  target_include_directories(webp::optional INTERFACE ${LOCKSTEP_WEBP_DIR})
  target_link_libraries(webp::optional INTERFACE ${LOCKSTEP_WEBP})
  target_compile_definitions(webp::optional INTERFACE LOCKSTEP_WITH_WEBP)
endif()

if(SKBUILD) # pip builds the Python package and selects the interpreter.
  set(LOCKSTEP_PYTHON ${Python_EXECUTABLE})
  execute_process(
    COMMAND ${LOCKSTEP_PYTHON} -c "import importlib.util, pathlib
torch = importlib.util.find_spec('torch')
print(pathlib.Path(torch.origin).parent / 'share/cmake/Torch' if torch else '', end='')"
    OUTPUT_VARIABLE Torch_DIR COMMAND_ERROR_IS_FATAL ANY)
  if(NOT Torch_DIR)
    message(FATAL_ERROR "Lockstep is built for the PyTorch that is installed, but this Python has "
                        "none, or pip hides it: pip install --no-build-isolation ./python")
  endif()
endif()

if(LOCKSTEP_WITH_TORCH OR LOCKSTEP_BUILD_PYTHON)
  include(cmake/Torch.cmake)
  lockstep_locate_torch()
  string(REPLACE ";" ", " versions "${LOCKSTEP_TORCH_VERSIONS}")
  if(NOT Torch_DIR)
    message(FATAL_ERROR "Lockstep needs LibTorch (${versions}), but CMake finds none. Name the "
                        "folder of its TorchConfig.cmake with -DTorch_DIR=DIR.")
  endif()
  string(REGEX MATCH "^[0-9]+[.][0-9]+" LOCKSTEP_TORCH_VERSION "${Torch_VERSION}")
  if(NOT LOCKSTEP_TORCH_VERSION IN_LIST LOCKSTEP_TORCH_VERSIONS)
    message(FATAL_ERROR "Lockstep needs LibTorch ${versions}, but ${Torch_DIR} holds LibTorch "
                        "${Torch_VERSION}. Name another with -DTorch_DIR=DIR.")
  endif()
  lockstep_define_torch("${TORCH_INSTALL_PREFIX}")
endif()

if(LOCKSTEP_WITH_TORCH)
  find_package(LibArchive REQUIRED)  # For tar shards, their compression, and .npz.
  find_package(ZLIB REQUIRED)
  find_package(JPEG REQUIRED)  # libjpeg-turbo: its functions decode regions of an image.
  find_package(PNG REQUIRED)
endif()

if(LOCKSTEP_BUILD_PYTHON)
  include(cmake/Python.cmake)
endif()

if(LOCKSTEP_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()
