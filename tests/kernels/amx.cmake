# Tests of AMX's tiles on any x86-64: the table of kernels over tiles in software (amx_shim.h). The
# objects come before the library, whose own table and question to the kernel are then left out.
add_library(hth_amx_shim OBJECT ${HEARTH_ROOT}/kernels/packed_amxbf16.c amx_shim.c)
target_include_directories(hth_amx_shim PUBLIC ${HEARTH_ROOT} ${HEARTH_ROOT}/tests)
target_compile_definitions(hth_amx_shim PUBLIC HTH_AMX_SHIM="kernels/amx_shim.h")
target_compile_options(hth_amx_shim PRIVATE -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off
    -Wno-psabi) # vectors of 64 bytes in functions that are all inlined
if(HEARTH_SANITIZE) # as the packed kernels' other files
    target_compile_options(hth_amx_shim PRIVATE -O1)
endif()
target_link_libraries(hth_amx_shim PUBLIC hth_flags)
foreach(name bits cases factors operands optim packed)
    set(test test_kernels_${name}_amx)
    if(name MATCHES "factors|optim") # under ThreadSanitizer, too, as packed
        set(test test_kernels_threads_${name}_amx)
    endif()
    set(labels unit kernels)
    if(NOT name STREQUAL "cases") # these go through all of the table
        list(APPEND labels long)
    endif()
    hth_test(${test} SOURCES test_${name}.c
        LINK hth_amx_shim hth_kernel_cases Threads::Threads LABELS ${labels})
endforeach()
hth_test(test_kernels_amx SOURCES test_amx.c LINK hth_amx_shim hth_kernels LABELS unit kernels)
