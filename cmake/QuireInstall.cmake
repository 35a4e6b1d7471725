# `cmake --install`: the library, its public headers, the program, and what find_package(quire) and pkg-config read. The
# Python package has a component of its own (QuirePython.cmake) and is installed by pip alone.
include(CMakePackageConfigHelpers)

install(TARGETS quire EXPORT quireTargets COMPONENT quire
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT quire
        FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")
if(TARGET quire_cli)
  install(TARGETS quire_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT quire)
endif()

# find_package(quire): a static library needs those it was built on when a program is linked.
set(quire_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
set(quire_dependencies "")
if(NOT BUILD_SHARED_LIBS)
  string(APPEND quire_dependencies "find_dependency(Threads)\nfind_dependency(fmt)\n")
  if(TARGET PNG::PNG)
    string(APPEND quire_dependencies "find_dependency(PNG)\n")
  endif()
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/quireConfig.cmake.in ${PROJECT_BINARY_DIR}/quireConfig.cmake
                              INSTALL_DESTINATION ${quire_cmake_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the C++ interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT quireTargets NAMESPACE quire:: DESTINATION ${quire_cmake_dir} COMPONENT quire)
if(TARGET quire_mpi)
  install(TARGETS quire_mpi EXPORT quireMpiTargets COMPONENT quire
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT quireMpiTargets NAMESPACE quire:: DESTINATION ${quire_cmake_dir} COMPONENT quire)
endif()
install(FILES ${PROJECT_BINARY_DIR}/quireConfig.cmake ${PROJECT_BINARY_DIR}/quireConfigVersion.cmake
        DESTINATION ${quire_cmake_dir} COMPONENT quire)

# pkg-config. The prefix is found from where the file lies, so that the tree can be moved (and a --prefix given to
# cmake --install counts).
set(quire_pc_cflags "")
set(quire_pc_private "")
if(BUILD_SHARED_LIBS)
  set(quire_pc_cflags " -DQUIRE_SHARED")
else()
  set(quire_pc_private "-lfmt")
  if(TARGET PNG::PNG)
    string(APPEND quire_pc_private " -lpng16")
  endif()
  string(APPEND quire_pc_private " -lstdc++ -lm -pthread")
endif()
file(RELATIVE_PATH quire_pc_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/quire.pc.in ${PROJECT_BINARY_DIR}/quire.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT quire)
