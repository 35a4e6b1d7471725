# What is built from the library and is not a test: the program `quire` (cli/), one executable per bench/*.cc and per
# examples/*.cc or *.c, one per examples/<folder> with a main.cc. A folder without sources adds nothing and needs none of its
# libraries.
file(GLOB cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cc)
# `quire play` writes the page of scripts/build-play where that was built before; otherwise it says how to.
set(QUIRE_PLAY_PAGE ${PROJECT_SOURCE_DIR}/build/play/play.html CACHE FILEPATH "The page that `quire play` writes")
if(EXISTS ${QUIRE_PLAY_PAGE})
  list(FILTER cli_sources EXCLUDE REGEX "/no_play_page\\.cc$")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/cli/play_page.cc PROPERTIES
    COMPILE_DEFINITIONS "QUIRE_PLAY_PAGE=\"${QUIRE_PLAY_PAGE}\"" OBJECT_DEPENDS ${QUIRE_PLAY_PAGE})
else()
  list(FILTER cli_sources EXCLUDE REGEX "/play_page\\.cc$")
endif()
if(cli_sources)
  find_package(CLI11 REQUIRED)
  find_package(fmt REQUIRED)
  add_executable(quire_cli ${cli_sources})
  set_target_properties(quire_cli PROPERTIES OUTPUT_NAME quire)
  quire_compile_options(quire_cli SHADOW)
  quire_compile_in_batches(quire_cli)
  # Like the tests, it shows the inside of the library; `bench` measures as bench/ does.
  target_include_directories(quire_cli PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/cli ${PROJECT_SOURCE_DIR})
  target_link_libraries(quire_cli PRIVATE quire CLI11::CLI11 fmt::fmt)
  if(QUIRE_QUICK)
    target_compile_options(quire_cli PRIVATE -O0)  # it reads arguments and prints; the library computes
  endif()
  if(NOT QUIRE_UNITY)
    target_precompile_headers(quire_cli PRIVATE <CLI/CLI.hpp>)  # 5 s a file otherwise
  endif()
endif()

file(GLOB bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.cc)
if(bench_sources)
  find_package(benchmark REQUIRED)
endif()
foreach(source IN LISTS bench_sources)
  cmake_path(GET source STEM name)
  add_executable(bench_${name} ${source})
  set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  quire_compile_options(bench_${name})
  target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/bench
                                                   ${PROJECT_SOURCE_DIR})
  target_link_libraries(bench_${name} PRIVATE quire benchmark::benchmark benchmark::benchmark_main fmt::fmt)
endforeach()

# Examples see what users see: public headers only.
enable_language(C)
file(GLOB example_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cc ${PROJECT_SOURCE_DIR}/examples/*.c)
foreach(source IN LISTS example_sources)
  cmake_path(GET source STEM name)
  add_executable(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  quire_compile_options(example_${name})
  target_link_libraries(example_${name} PRIVATE quire)
endforeach()

# An example of several files: examples/<folder>, with a main.cc among them.
file(GLOB example_folders CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*/main.cc)
foreach(main IN LISTS example_folders)
  cmake_path(GET main PARENT_PATH folder)
  cmake_path(GET folder FILENAME name)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc)
  add_executable(example_${name} ${sources})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  quire_compile_options(example_${name})
  target_link_libraries(example_${name} PRIVATE quire)
endforeach()
