# cpack runs this script when the files of all packages are in place, before it packs them. The
# script adds the documents that Debian's policy requires, and finds the packages of required
# libraries.

cmake_policy(VERSION 3.23)

# Sets <result> to cpack's folder with the files of a component.
function(staged result component)
  set(${result} ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX}
      PARENT_SCOPE)
endfunction()

function(compress text file)
  execute_process(COMMAND gzip -9n INPUT_FILE ${text} OUTPUT_FILE ${file}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# --- Documents ----------------------------------------------------------------------------------

string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(changelog ${CPACK_TOPLEVEL_DIRECTORY}/changelog.Debian)
file(WRITE ${changelog}
     "lockstep (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=low\n\n"
     "  * Version ${CPACK_PACKAGE_VERSION}: changelog.gz lists the changes.\n\n"
     " -- ${CPACK_PACKAGE_CONTACT}  ${today}\n")

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} name)
  set(package ${CPACK_DEBIAN_${name}_PACKAGE_NAME})
  staged(prefix ${component})
  set(documents ${prefix}/share/doc/${package})
  file(COPY ${CMAKE_CURRENT_LIST_DIR}/copyright DESTINATION ${documents})
  compress(${changelog} ${documents}/changelog.Debian.gz)
  compress(${CPACK_LOCKSTEP_SOURCES}/CHANGELOG.md ${documents}/changelog.gz)
  file(MAKE_DIRECTORY ${prefix}/share/lintian/overrides)
  file(COPY_FILE ${CMAKE_CURRENT_LIST_DIR}/${package}.lintian-overrides
       ${prefix}/share/lintian/overrides/${package})
endforeach()

# --- Dependencies -------------------------------------------------------------------------------

# Sets <result> to the programs and libraries of a component, without links to libraries.
function(binaries_of result component)
  staged(prefix ${component})
  file(GLOB files ${prefix}/bin/* ${prefix}/${CPACK_LOCKSTEP_LIBRARIES}/*.so*)
  set(binaries "")
  foreach(file IN LISTS files)
    if(NOT IS_SYMLINK ${file})
      list(APPEND binaries ${file})
    endif()
  endforeach()
  set(${result} ${binaries} PARENT_SCOPE)
endfunction()

# dependencies(<argument of dpkg-shlibdeps>...): sets shlibs_Depends, shlibs_Recommends and
# shlibs_Suggests. LibTorch belongs to no package.
function(dependencies)
  staged(comm comm)
  staged(full full)
  staged(toolkit toolkit)
  set(folder ${CPACK_TOPLEVEL_DIRECTORY}/dependencies)
  file(WRITE ${folder}/debian/control "")
  execute_process(
    COMMAND dpkg-shlibdeps -O --ignore-missing-info -l${comm}/${CPACK_LOCKSTEP_LIBRARIES}
            -l${full}/${CPACK_LOCKSTEP_LIBRARIES} -l${toolkit}/${CPACK_LOCKSTEP_LIBRARIES}
            -l${CPACK_LOCKSTEP_TORCH} ${ARGN}
    WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE found ERROR_VARIABLE log RESULT_VARIABLE code)
  if(code)
    message(FATAL_ERROR "dpkg-shlibdeps: ${log}")
  endif()
  foreach(field Depends Recommends Suggests)
    set(packages "")
    if(found MATCHES "shlibs:${field}=([^\n]*)")
      set(packages ${CMAKE_MATCH_1})
    endif()
    set(shlibs_${field} "${packages}" PARENT_SCOPE)
  endforeach()
endfunction()

# An engine is opened only if a job requests it, so its library is not required. Gloo's is small and
# works under any launcher, so it is recommended. MPI users have MPI anyway, libfabric is only for
# oneCCL, and NCCL comes from NVIDIA.
binaries_of(required comm)
set(recommended ${required})
set(suggested ${required})
list(FILTER recommended INCLUDE REGEX "/liblockstep-gloo\\.so$")
list(FILTER suggested INCLUDE REGEX "/liblockstep-engine-mpi\\.so$")
list(FILTER required EXCLUDE REGEX "/liblockstep-(engine-.*|gloo)\\.so$")
dependencies(-dDepends ${required} -dRecommends ${recommended} -dSuggests ${suggested})
set(CPACK_DEBIAN_COMM_PACKAGE_DEPENDS "${shlibs_Depends}")
set(CPACK_DEBIAN_COMM_PACKAGE_RECOMMENDS "${shlibs_Recommends}")
set(CPACK_DEBIAN_COMM_PACKAGE_SUGGESTS "${shlibs_Suggests}")

foreach(component full toolkit)
  if(component IN_LIST CPACK_COMPONENTS_ALL)
    binaries_of(required ${component})
    dependencies(${required})
    string(TOUPPER ${component} name)
    set(CPACK_DEBIAN_${name}_PACKAGE_DEPENDS "${shlibs_Depends}")
  endif()
endforeach()
