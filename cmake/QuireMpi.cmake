# quire_mpi, quire::mpi: a Communicator over MPI (include/quire/mpi_communicator.h). A library of its own, so that quire itself
# depends on no MPI; not built where there is none. MPI_CXX_COMPILER chooses among several (mpicxx.mpich, say).
find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND)
  file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/mpi/*.cc)
  add_library(quire_mpi ${mpi_sources})
  add_library(quire::mpi ALIAS quire_mpi)
  set_target_properties(quire_mpi PROPERTIES EXPORT_NAME mpi VERSION ${PROJECT_VERSION} POSITION_INDEPENDENT_CODE ON
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  quire_compile_options(quire_mpi)
  target_compile_definitions(quire_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)  # of C++ they have classes of their own
  target_link_libraries(quire_mpi PUBLIC quire PRIVATE MPI::MPI_CXX)
else()
  message(STATUS "MPI was not found: quire_mpi is not built")
endif()

# `ctest -L mpi`: the program runs with 2, 3 and 4 ranks, whatever the machine has.
if(TARGET quire_mpi AND QUIRE_TESTS)
  enable_testing()
  add_executable(mpi_context_parallel ${PROJECT_SOURCE_DIR}/tests/mpi/context_parallel.cc)
  quire_compile_options(mpi_context_parallel)
  target_link_libraries(mpi_context_parallel PRIVATE quire_mpi)
  function(quire_mpi_test name ranks label)
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:mpi_context_parallel>
             ${ARGN})
    # What OpenMPI needs to start as root and on fewer cores than ranks; MPICH does not read these.
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 600 ENVIRONMENT
      "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none")
  endfunction()
  foreach(ranks 2 3 4)
    quire_mpi_test(mpi_${ranks} ${ranks} mpi)
    quire_mpi_test(mpi_gallery_${ranks} ${ranks} mpi_gallery --gallery)  # every mask and mod: make check-all
  endforeach()
  # Ends with the program's own exit code or the launcher's, as a rank leaves without a word: what rank 0 said counts.
  quire_mpi_test(mpi_absent 2 mpi --absent)
  set_tests_properties(mpi_absent PROPERTIES PASS_REGULAR_EXPRESSION "rank 0: .mpi. no answer in 2")
endif()
