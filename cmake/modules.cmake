# ae_module(NAME [PURE] [DEPENDS mod…] [TEST_DEPENDS mod…] [LIBS external…] [TEST_LIBS external…]
#           [SUBDIRS folder…])
#
# One line in src/<module>/CMakeLists.txt. A folder is a library is the unit of the dependency
# rule; scripts/layers.py reads the same line and holds every #include to it. What a file becomes
# follows from its name:
#   *.cc            the library ae_<name> (without any: an INTERFACE library)
#   *_test.cc       the program <name>_test, with GoogleTest's main and ae_testing
#   X_main.cc       the program X, in the build folder itself
#   X_testing_main.cc  the program X_testing, which tests and benchmarks run; linked with ae_testing, too
#   *_bench.cc      aetheris_bench
#   X_fuzz.cc       the program fuzz/X, under the preset `dev` only (AE_FUZZ: clang's libFuzzer); target `fuzzers`
# A module may be named with / or _ (store/memory is store_memory). Links are made at the end, so
# the order of folders does not matter and a folder that is not there yet is passed over.

function(ae_module name)
  cmake_parse_arguments(M "PURE" "" "DEPENDS;TEST_DEPENDS;LIBS;TEST_LIBS;SUBDIRS" ${ARGN})
  if(M_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "ae_module(${name}): I do not know ${M_UNPARSED_ARGUMENTS}")
  endif()
  string(REPLACE "/" "_" name ${name})

  set(patterns *.cc)
  foreach(folder ${M_SUBDIRS})
    list(APPEND patterns ${folder}/*.cc)
  endforeach()
  file(GLOB files CONFIGURE_DEPENDS ${patterns})
  set(sources ${files})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz|main)\\.cc$")
  foreach(kind test bench fuzz main)
    set(${kind}s ${files})
    list(FILTER ${kind}s INCLUDE REGEX "_${kind}\\.cc$")
  endforeach()

  if(sources)
    add_library(ae_${name} STATIC ${sources})
    if(name IN_LIST AE_OPTIMIZED)
      target_compile_options(ae_${name} PRIVATE -O1)
    endif()
    if(AE_UNITY)
      set_target_properties(ae_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${AE_UNITY})
    endif()
    set(scope PUBLIC)
  else()
    add_library(ae_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(ae_${name} ${scope} ${CMAKE_SOURCE_DIR}/src)
  ae_link_later(ae_${name} ${scope} DEPENDS ${M_DEPENDS} LIBS ${M_LIBS})
  set_property(GLOBAL APPEND PROPERTY AE_MODULES ${name})
  set_property(GLOBAL APPEND PROPERTY AE_BENCHES ${benchs})

  foreach(main ${mains})
    cmake_path(GET main STEM program)
    string(REGEX REPLACE "_main$" "" program ${program})
    add_executable(${program} ${main})
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
    target_link_libraries(${program} PRIVATE ae_${name})
    if(program MATCHES "_testing$")
      ae_link_later(${program} PRIVATE DEPENDS testing)
    endif()
    ae_use_allocator(${program})
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      ae_split_symbols(${program})
    endif()
  endforeach()

  if(AE_FUZZ)
    foreach(fuzz ${fuzzs})
      cmake_path(GET fuzz STEM target)
      add_executable(${target} EXCLUDE_FROM_ALL ${fuzz})
      string(REGEX REPLACE "_fuzz$" "" program ${target})
      set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${program} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
      target_link_libraries(${target} PRIVATE ae_${name})
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      ae_link_later(${target} PRIVATE DEPENDS ${M_TEST_DEPENDS})
      set_property(GLOBAL APPEND PROPERTY AE_FUZZ_PROGRAMS ${target})
    endforeach()
  endif()

  if(tests AND AE_TESTS)
    add_executable(${name}_test ${tests})
    set_target_properties(${name}_test PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    if(AE_UNITY)
      set_target_properties(${name}_test PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${AE_UNITY})
    endif()
    target_link_libraries(${name}_test PRIVATE ae_${name} GTest::gtest_main GTest::gtest)
    ae_compile_as_test(${name}_test)
    ae_link_later(${name}_test PRIVATE DEPENDS testing ${M_TEST_DEPENDS} LIBS ${M_TEST_LIBS})
    add_test(NAME ${name}_test COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name}_test PROPERTIES ENVIRONMENT
      "AETHERIS_ROOT=${CMAKE_SOURCE_DIR};AETHERIS_BIN=${CMAKE_BINARY_DIR}/aetheris")
    set_property(GLOBAL APPEND PROPERTY AE_TEST_PROGRAMS ${name}_test)
  endif()
endfunction()

# How test files are compiled: AE_TEST_FLAGS, and with clang one precompiled header for all of them, because reading
# GoogleTest and the standard library is half the work of most. A precompiled header holds the path of its source, which
# is GoogleTest's own header: no path of this tree is in it, so ccache may give it to a tree of another name. It is the
# object of a library, because target_precompile_headers writes a header of its own into the build folder.
# Nothing of ours is in it: a missing #include stays an error.
set(AE_TEST_HEADERS algorithm chrono cstdlib filesystem fstream functional map memory optional set sstream string
  string_view thread utility vector)

function(ae_add_test_headers)
  if(NOT AE_TESTS OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    return()
  endif()
  find_file(AE_GTEST_HEADER gtest/gtest.h REQUIRED)
  set_source_files_properties(${AE_GTEST_HEADER} PROPERTIES LANGUAGE CXX)
  add_library(ae_test_headers OBJECT ${AE_GTEST_HEADER})
  target_link_libraries(ae_test_headers PRIVATE GTest::gtest Threads::Threads)
  list(TRANSFORM AE_TEST_HEADERS PREPEND "-include " OUTPUT_VARIABLE included)
  list(JOIN included " " included)
  # Without the time of the files in it: ccache compares contents.
  target_compile_options(ae_test_headers PRIVATE ${AE_TEST_FLAGS}
    "SHELL:-x c++-header -Xclang -fno-pch-timestamp -fpch-instantiate-templates ${included}")
endfunction()

function(ae_compile_as_test target)
  target_compile_options(${target} PRIVATE ${AE_TEST_FLAGS})
  if(TARGET ae_test_headers)
    set(object ${CMAKE_BINARY_DIR}/CMakeFiles/ae_test_headers.dir${AE_GTEST_HEADER}.o)
    target_compile_options(${target} PRIVATE "SHELL:-include-pch ${object} -Xclang -fno-pch-timestamp")
    add_dependencies(${target} ae_test_headers)  # before the first build; later the compiler lists it as a dependency
  endif()
endfunction()

# Moves the debug symbols of a release program to PROGRAM.debug beside it, where debuggers and
# profilers find them by the program's debug link.
function(ae_split_symbols program)
  set(file $<TARGET_FILE:${program}>)
  add_custom_command(TARGET ${program} POST_BUILD
    COMMAND ${CMAKE_OBJCOPY} --only-keep-debug ${file} ${file}.debug
    COMMAND ${CMAKE_OBJCOPY} --strip-all --add-gnu-debuglink=${file}.debug ${file}
    VERBATIM)
endfunction()

# A step makes some two hundred small values: mimalloc halves its cost (docs/bench.md). The sanitizers bring their own.
function(ae_use_allocator program)
  if(NOT AE_SANITIZE)
    target_link_options(${program} PRIVATE LINKER:--push-state,--no-as-needed -lmimalloc LINKER:--pop-state)
  endif()
endfunction()

# Remembers a link until every module is known.
function(ae_link_later target scope)
  cmake_parse_arguments(L "" "" "DEPENDS;LIBS" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY AE_LINKED ${target})
  set_property(GLOBAL PROPERTY AE_SCOPE_${target} ${scope})
  set_property(GLOBAL PROPERTY AE_DEPENDS_${target} ${L_DEPENDS})
  set_property(GLOBAL PROPERTY AE_LIBS_${target} ${L_LIBS})
endfunction()

macro(ae_add_modules)
  enable_testing()
  ae_add_test_headers()
  # A module that appears makes the next build configure itself again.
  file(GLOB ae_module_files CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/src/*/CMakeLists.txt ${CMAKE_SOURCE_DIR}/src/*/*/CMakeLists.txt)
  foreach(folder ${ARGN})
    if(EXISTS ${CMAKE_SOURCE_DIR}/src/${folder}/CMakeLists.txt)
      list(REMOVE_ITEM ae_module_files ${CMAKE_SOURCE_DIR}/src/${folder}/CMakeLists.txt)
      string(REPLACE "/" "_" ae_folder_name ${folder})
      add_subdirectory(src/${folder} ${CMAKE_BINARY_DIR}/src/${ae_folder_name})
    endif()
  endforeach()
  foreach(file ${ae_module_files})
    message(WARNING "${file} is in no list: add its folder to ae_add_modules in CMakeLists.txt")
  endforeach()
endmacro()

# aetheris_bench: <folder>/*.cc and every module's *_bench.cc, linked with all modules. Times
# under a sanitizer mean nothing, so it is not built there.
function(ae_add_bench folder)
  if(AE_SANITIZE)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  get_property(benches GLOBAL PROPERTY AE_BENCHES)
  list(APPEND sources ${benches})
  if(NOT sources)
    return()
  endif()
  add_executable(aetheris_bench ${sources})
  set_target_properties(aetheris_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  ae_use_allocator(aetheris_bench)
  get_property(modules GLOBAL PROPERTY AE_MODULES)
  ae_link_later(aetheris_bench PRIVATE DEPENDS ${modules})
endfunction()

function(ae_finish)
  get_property(targets GLOBAL PROPERTY AE_LINKED)
  foreach(target ${targets})
    get_property(scope GLOBAL PROPERTY AE_SCOPE_${target})
    get_property(modules GLOBAL PROPERTY AE_DEPENDS_${target})
    get_property(libs GLOBAL PROPERTY AE_LIBS_${target})
    foreach(module ${modules})
      string(REPLACE "/" "_" module ${module})
      if(TARGET ae_${module})
        target_link_libraries(${target} ${scope} ae_${module})
      else()
        message(STATUS "${target}: module ${module} is not there yet")
      endif()
    endforeach()
    foreach(lib ${libs})
      ae_external(${lib} found)
      target_link_libraries(${target} ${scope} ${found})
    endforeach()
    target_link_libraries(${target} ${scope} Threads::Threads)
  endforeach()

  # What `./dev test` runs, one program a line.
  get_property(programs GLOBAL PROPERTY AE_TEST_PROGRAMS)
  list(TRANSFORM programs PREPEND "tests/")
  list(JOIN programs "\n" lines)
  file(WRITE ${CMAKE_BINARY_DIR}/tests.txt "${lines}\n")

  # What `./dev fuzz` builds: only these programs and the libraries they need.
  if(AE_FUZZ)
    get_property(programs GLOBAL PROPERTY AE_FUZZ_PROGRAMS)
    add_custom_target(fuzzers DEPENDS ${programs})
  endif()
endfunction()
