# Finds an interpreter whose torch is this LibTorch, and its headers. Otherwise sets
# LOCKSTEP_BUILD_PYTHON to OFF and prints the reason.

set(missing "")
find_library(LOCKSTEP_TORCH_PYTHON torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH)
if(LOCKSTEP_PYTHON AND LOCKSTEP_TORCH_PYTHON)
  execute_process(
    COMMAND ${LOCKSTEP_PYTHON} -c "import sys, sysconfig
print(sysconfig.get_paths()['include'], sysconfig.get_config_var('EXT_SUFFIX'),
      '%d.%d' % sys.version_info[:2], sep=';', end='')"
    OUTPUT_VARIABLE found COMMAND_ERROR_IS_FATAL ANY)
  list(GET found 0 LOCKSTEP_PYTHON_INCLUDE)
  list(GET found 1 LOCKSTEP_PYTHON_SUFFIX)
  list(GET found 2 LOCKSTEP_PYTHON_VERSION)
  if(NOT EXISTS ${LOCKSTEP_PYTHON_INCLUDE}/Python.h)
    set(missing "there is no ${LOCKSTEP_PYTHON_INCLUDE}/Python.h, which python3-dev brings")
  endif()
else()
  set(missing "LOCKSTEP_PYTHON names no Python that has the LibTorch in ${TORCH_INSTALL_PREFIX}")
endif()
if(missing AND SKBUILD)
  message(FATAL_ERROR "${missing}")
elseif(missing)
  message(STATUS "Without the package for Python: ${missing}")
  set(LOCKSTEP_BUILD_PYTHON OFF)
endif()
