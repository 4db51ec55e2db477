# hearth's three kinds of targets. Every folder is one static library that links only what the
# layers table of docs/architecture.md allows; a forbidden include then fails to link in that
# folder's own test.

# hth_library(NAME SOURCES a.c b.c [LINK other libs])
function(hth_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_include_directories(${name} PUBLIC ${HEARTH_ROOT})
    target_link_libraries(${name} PUBLIC hth_flags ${ARG_LINK})
endfunction()

# All test programs but those of long tests: what `tools/test --asan` builds.
add_custom_target(short_tests)

# The options of test programs and of their parts.
function(hth_test_code target link labels)
    target_include_directories(${target} PRIVATE ${HEARTH_ROOT} ${HEARTH_ROOT}/tests)
    target_link_libraries(${target} PRIVATE ${link} PkgConfig::CMOCKA m)
    if(HEARTH_GOLD)
        target_link_options(${target} PRIVATE -fuse-ld=gold)
    endif()
    # A test's own code is run once and compiled often: half of a build's time goes into it. The
    # kernels' tests are the exception: their float64 references take long.
    if("kernels" IN_LIST labels)
        return()
    elseif(HEARTH_SANITIZE)
        target_compile_options(${target} PRIVATE -O0)
    else()
        target_compile_options(${target} PRIVATE -O1)
    endif()
endfunction()

# A source that several tests of a folder share, compiled once.
function(hth_test_part source link labels out)
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    get_filename_component(stem ${source} NAME_WE)
    set(part part_${folder}_${stem})
    if(NOT TARGET ${part})
        add_library(${part} OBJECT ${source})
        hth_test_code(${part} "${link}" "${labels}")
    endif()
    set(${out} ${part} PARENT_SCOPE)
endfunction()

# hth_test(NAME SOURCES t.c [LINK libs] [LABELS unit|sim|integration|kernels, long] [TIMEOUT seconds]
#          [WAITS])
# Sources of the folder after the first are shared with its other tests.
# `long` is for a test that takes more than ten seconds under AddressSanitizer and shows it no code
# that other tests do not: `tools/test --asan` leaves it out, `tools/test --all` does not.
function(hth_test name)
    cmake_parse_arguments(ARG "WAITS" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
    if(NOT HEARTH_TESTS OR HEARTH_FUZZ OR NOT CMOCKA_FOUND)
        return()
    endif()
    if(NOT ARG_LABELS)
        set(ARG_LABELS unit)
    endif()
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 120)
    endif()
    if(CMAKE_CROSSCOMPILING)
        math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}") # an emulator is slow
    elseif(HEARTH_SANITIZE)
        math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
    endif()
    list(POP_FRONT ARG_SOURCES own)
    foreach(source ${ARG_SOURCES})
        if(source MATCHES "/")
            list(APPEND own ${source})
        else()
            hth_test_part(${source} "${ARG_LINK}" "${ARG_LABELS}" part)
            list(APPEND own $<TARGET_OBJECTS:${part}>)
        endif()
    endforeach()
    add_executable(${name} ${own})
    hth_test_code(${name} "${ARG_LINK}" "${ARG_LABELS}")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
    if(NOT ARG_LABELS MATCHES "long|soak|hostile")
        add_dependencies(short_tests ${name})
    endif()
    # tools/test has four places for each core: a test that computes takes four, one that mostly
    # waits takes one and begins early, so that the others go on meanwhile.
    if(ARG_WAITS)
        set_tests_properties(${name} PROPERTIES PROCESSORS 1 COST 1000)
    else()
        set_tests_properties(${name} PROPERTIES PROCESSORS 4)
    endif()
endfunction()

# hth_fuzzer(NAME SOURCES fuzz_x.c [LINK libs]): with clang and -DHEARTH_FUZZ=ON a libFuzzer
# program; otherwise a replayer that runs the saved corpus and seeded mutations of it, so that every
# parser is exercised in the normal tests too.
function(hth_fuzzer name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
    if(NOT HEARTH_TESTS)
        return()
    endif()
    if(HEARTH_FUZZ)
        add_executable(${name} ${ARG_SOURCES})
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    else()
        if(NOT TARGET hth_replay)
            add_library(hth_replay OBJECT ${HEARTH_ROOT}/tests/fuzz/replay.c)
            target_include_directories(hth_replay PRIVATE ${HEARTH_ROOT} ${HEARTH_ROOT}/tests)
            target_link_libraries(hth_replay PRIVATE hth_core)
        endif()
        add_executable(${name} ${ARG_SOURCES} $<TARGET_OBJECTS:hth_replay>)
        add_test(NAME ${name} COMMAND ${name} ${HEARTH_ROOT}/tests/fuzz/corpus/${name})
        set_tests_properties(${name} PROPERTIES LABELS "fuzz" TIMEOUT 120 PROCESSORS 4)
        add_dependencies(short_tests ${name})
    endif()
    # libFuzzer's entry point has no header.
    set_source_files_properties(${ARG_SOURCES} PROPERTIES COMPILE_OPTIONS -Wno-missing-prototypes)
    target_include_directories(${name} PRIVATE ${HEARTH_ROOT} ${HEARTH_ROOT}/tests)
    target_link_libraries(${name} PRIVATE ${ARG_LINK} m)
endfunction()

# hth_proto(LIBRARY a.proto ...): protobuf-c code, generated in the build tree.
function(hth_proto library)
    find_program(PROTOC_C NAMES protoc-c protoc REQUIRED)
    foreach(proto ${ARGN})
        get_filename_component(abs ${proto} ABSOLUTE)
        file(RELATIVE_PATH rel ${HEARTH_ROOT} ${abs})
        string(REGEX REPLACE "\\.proto$" "" stem ${rel})
        set(out ${CMAKE_BINARY_DIR}/gen/${stem}.pb-c)
        add_custom_command(
            OUTPUT ${out}.c ${out}.h
            COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/gen
            COMMAND protoc-c --proto_path=${HEARTH_ROOT} --c_out=${CMAKE_BINARY_DIR}/gen ${rel}
            WORKING_DIRECTORY ${HEARTH_ROOT}
            DEPENDS ${abs}
            VERBATIM)
        target_sources(${library} PRIVATE ${out}.c ${out}.h)
        set_source_files_properties(${out}.c PROPERTIES COMPILE_OPTIONS "-w")
    endforeach()
    target_include_directories(${library} SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/gen)
endfunction()
