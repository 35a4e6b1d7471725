# The Python package: the extension quire/_core (nanobind over the library) beside the files of python/quire, together in
# <build>/python, which is what goes on sys.path. There the Python files are links, so that an edit is seen at once.
# Python_EXECUTABLE says for which Python; it needs nanobind.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED NO_CMAKE_FIND_ROOT_PATH)  # beside Python, not in what is cross-compiled against

file(GLOB python_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/src/*.cc)
# One binary for all CPythons from 3.12 on; for this one alone where it is older.
nanobind_add_module(quire_core NB_STATIC STABLE_ABI NOMINSIZE NB_SUPPRESS_WARNINGS ${python_sources})
set_target_properties(quire_core PROPERTIES OUTPUT_NAME _core LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python/quire)
quire_compile_options(quire_core SHADOW)
quire_compile_in_batches(quire_core)
target_include_directories(quire_core PRIVATE ${PROJECT_SOURCE_DIR}/python/src)
target_link_libraries(quire_core PRIVATE quire fmt::fmt)
if(QUIRE_QUICK)
  target_compile_options(quire_core PRIVATE -O0)  # 19 s in place of 28: it hands arguments on, others compute
endif()
foreach(nanobind IN ITEMS nanobind-static nanobind-static-abi3)
  if(TARGET ${nanobind} AND QUIRE_UNITY)
    set_target_properties(${nanobind} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endforeach()

# Links to files and, for folders, to the whole folder: a new file in one is there without CMake.
file(GLOB python_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python/quire ${PROJECT_SOURCE_DIR}/python/quire/*)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/python/quire)
foreach(name IN LISTS python_files)
  if(NOT name MATCHES "^(__pycache__|_core\\..*so)$")
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/quire/${name} ${PROJECT_BINARY_DIR}/python/quire/${name} SYMBOLIC)
  endif()
endforeach()

# What an installed package says about itself, so that programs find the plugins of one that was only built. pyproject.toml has them.
file(READ ${PROJECT_SOURCE_DIR}/pyproject.toml pyproject)
string(REGEX MATCH "entry-points.\"(vllm[^\"]*)\".\n([a-z]+) = \"([a-z.:]+)\"" found "${pyproject}")
set(about ${PROJECT_BINARY_DIR}/python/quire-${PROJECT_VERSION}.dist-info)
file(WRITE ${about}/METADATA "Metadata-Version: 2.1\nName: quire\nVersion: ${PROJECT_VERSION}\n")
file(WRITE ${about}/entry_points.txt "[${CMAKE_MATCH_1}]\n${CMAKE_MATCH_2} = ${CMAKE_MATCH_3}\n")

# The types of the extension for editors and checkers, read off the extension itself. Builds the extension first, so that
# this target is the whole package.
nanobind_add_stub(quire_python MODULE _core PYTHON_PATH ${PROJECT_BINARY_DIR}/python/quire DEPENDS quire_core
                  OUTPUT ${PROJECT_BINARY_DIR}/python/quire/_core.pyi)

install(TARGETS quire_core LIBRARY DESTINATION quire COMPONENT python)
install(FILES ${PROJECT_BINARY_DIR}/python/quire/_core.pyi DESTINATION quire COMPONENT python)
