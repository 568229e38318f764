# Finds LibTorch and defines the imported target Lockstep::torch, also for an installed
# LockstepConfig.cmake.
#
# find_package(Torch) needs a CUDA toolkit for a CUDA build of LibTorch. Its targets are also
# visible in one directory only, which fails for a project that adds Lockstep as a subdirectory.

# Supported minor versions of LibTorch, oldest first (lockstep/tensor/torch_version.h).
set(LOCKSTEP_TORCH_VERSIONS 2.11 2.12 2.13 2.14 2.15)

# Sets Torch_DIR (the folder of TorchConfig.cmake, or empty), Torch_VERSION and TORCH_INSTALL_PREFIX
# in the caller's scope. Searches Torch_DIR and CMAKE_PREFIX_PATH, and finally the folders of ARGN.
function(lockstep_locate_torch)
  find_package(Torch QUIET CONFIG CONFIGS TorchConfigVersion.cmake PATHS ${ARGN})
  if(NOT Torch_FOUND)
    set(Torch_DIR "" PARENT_SCOPE)
    return()
  endif()
  cmake_path(CONVERT "${Torch_DIR}/../../.." TO_CMAKE_PATH_LIST prefix NORMALIZE)
  string(REGEX REPLACE "/$" "" prefix "${prefix}")
  set(Torch_DIR "${Torch_DIR}" PARENT_SCOPE)
  set(Torch_VERSION "${PACKAGE_VERSION}" PARENT_SCOPE)  # Set by TorchConfigVersion.cmake.
  set(TORCH_INSTALL_PREFIX "${prefix}" PARENT_SCOPE)
endfunction()

# Defines Lockstep::torch for the LibTorch below `prefix`.
function(lockstep_define_torch prefix)
  if(TARGET Lockstep::torch)
    return()
  endif()
  foreach(part c10 torch_cpu)
    add_library(Lockstep::${part} SHARED IMPORTED GLOBAL)
    set_target_properties(Lockstep::${part} PROPERTIES
      IMPORTED_LOCATION "${prefix}/lib/lib${part}.so" IMPORTED_SONAME lib${part}.so)
  endforeach()
  add_library(Lockstep::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(Lockstep::torch PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "USE_C10D_GLOO;USE_DISTRIBUTED;USE_RPC;USE_TENSORPIPE"
    INTERFACE_INCLUDE_DIRECTORIES "${prefix}/include;${prefix}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "Lockstep::torch_cpu;Lockstep::c10"
    # libtorch_cpu.so of a CUDA build needs libraries in NVIDIA's wheels; its RUNPATH has the paths.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endfunction()

# Sets `result` to the link item of LibTorch's libraries for CUDA devices, or to nothing. The
# default is to link them if LibTorch has them and this machine has NVIDIA's driver; without them,
# programs start faster.
function(lockstep_torch_cuda result prefix)
  set(default OFF)
  if(EXISTS "${prefix}/lib/libtorch_cuda.so" AND EXISTS /dev/nvidiactl)
    set(default ON)
  endif()
  option(LOCKSTEP_TORCH_CUDA "Link programs with LibTorch's libraries for CUDA" ${default})
  if(EXISTS "${prefix}/lib/libtorch_cuda.so" AND NOT LOCKSTEP_TORCH_CUDA)
    message(STATUS "Programs are linked without LibTorch's libraries for CUDA; "
                   "-DLOCKSTEP_TORCH_CUDA=ON links them")
  endif()
  set(libraries "")
  if(LOCKSTEP_TORCH_CUDA)
    # Programs call them through LibTorch's dispatcher, so the linker sees no reference.
    set(libraries "${prefix}/lib/libtorch_cuda.so,${prefix}/lib/libc10_cuda.so")
    set(libraries "-Wl,--push-state,--no-as-needed,${libraries},--pop-state")
  endif()
  set(${result} "${libraries}" PARENT_SCOPE)
endfunction()
