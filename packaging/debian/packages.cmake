# Settings with which cpack builds Debian packages of the components in cmake/Install.cmake. The
# preset `package` includes this file after all install() commands; see `./dev package`.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)  # Compression uses all cores.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL comm dev)
if(LOCKSTEP_WITH_TORCH)
  list(APPEND CPACK_COMPONENTS_ALL full toolkit)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)

# The person who builds a package is its maintainer, named as for Debian's own tools.
set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
if("$ENV{DEBFULLNAME}" STREQUAL "" OR "$ENV{DEBEMAIL}" STREQUAL "")
  set(CPACK_PACKAGE_CONTACT "Lockstep <root@localhost>")
endif()

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SOURCE lockstep)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_COMPONENT_FULL_DEPENDS comm)
set(CPACK_COMPONENT_TOOLKIT_DEPENDS full)
set(CPACK_COMPONENT_DEV_DEPENDS comm)

set(CPACK_DEBIAN_COMM_PACKAGE_NAME lockstep-comm)
set(CPACK_DEBIAN_COMM_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_COMM_DESCRIPTION
"collectives, launcher and engines for distributed programs in C++
The part of Lockstep that needs no LibTorch: the collectives and messages of
torch.distributed between ranks on one host and on several, the engines that
join hosts over Gloo, MPI or oneCCL, and the command lockstep, which starts,
watches and restarts ranks.")

set(CPACK_DEBIAN_FULL_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_FULL_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_FULL_DESCRIPTION
"distributed training for C++ programs that use LibTorch
Data parallel, fully sharded, tensor parallel and pipelined training,
checkpoints and data loading for programs in C++.

It needs LibTorch ${LOCKSTEP_TORCH_VERSION}, of which Debian has no package. Unpack LibTorch's
archive to ${LOCKSTEP_TORCH_PLACE}, or make this a link to the folder torch of
Python's package. Programs that were linked with another LibTorch ${LOCKSTEP_TORCH_VERSION}
take theirs, and LD_LIBRARY_PATH comes before both.")

set(CPACK_DEBIAN_TOOLKIT_PACKAGE_NAME lockstep-toolkit)
set(CPACK_DEBIAN_TOOLKIT_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_TOOLKIT_DESCRIPTION
"data formats, schedules, LoRA and pruning for Lockstep
Readers of images, tar shards, arrays and token files, learning rate
schedules, LoRA, averages of weights, pruning, compiled training steps, the
log of a run, and the command lockstep shard.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME lockstep-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS
    "lockstep-toolkit (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_COMPONENT_DEV_DESCRIPTION
"headers, CMake and pkg-config files of Lockstep
find_package(Lockstep COMPONENTS comm) needs lockstep-comm alone. Training
needs the package lockstep too, and COMPONENTS toolkit needs lockstep-toolkit.
Both need LibTorch ${LOCKSTEP_TORCH_VERSION}, which CMake finds by CMAKE_PREFIX_PATH or Torch_DIR,
or in ${LOCKSTEP_TORCH_PLACE}.")

# The libraries of a package, for dependencies of packages that are built with them.
set(shlibs_of_comm "")
set(shlibs_of_full "")
set(shlibs_of_toolkit "")
foreach(library IN LISTS libraries)
  component_of(component ${library})
  string(TOUPPER ${component} name)
  string(APPEND shlibs_of_${component}
         "lib${library} ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} "
         "${CPACK_DEBIAN_${name}_PACKAGE_NAME} (>= ${PROJECT_VERSION})\n")
endforeach()
foreach(component comm full toolkit)
  set(control ${PROJECT_BINARY_DIR}/packaging/${component})
  file(WRITE ${control}/shlibs "${shlibs_of_${component}}")
  file(WRITE ${control}/triggers "activate-noawait ldconfig\n")
  string(TOUPPER ${component} name)
  set(CPACK_DEBIAN_${name}_PACKAGE_CONTROL_EXTRA ${control}/shlibs ${control}/triggers)
endforeach()

set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/stage.cmake)
set(CPACK_LOCKSTEP_SOURCES ${PROJECT_SOURCE_DIR})
set(CPACK_LOCKSTEP_LIBRARIES ${CMAKE_INSTALL_LIBDIR})
set(CPACK_LOCKSTEP_TORCH ${TORCH_INSTALL_PREFIX}/lib)
include(CPack)
