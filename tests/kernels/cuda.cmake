# Tests of the CUDA back end without a card: its host side over tables of our own, its kernels over
# the shim, which needs a C++ compiler.
set(CUDA_DIR ${HEARTH_ROOT}/kernels/cuda)
add_library(hth_cuda_host STATIC
    ${CUDA_DIR}/device.c ${CUDA_DIR}/graph.c ${CUDA_DIR}/group.c ${CUDA_DIR}/home.c ${CUDA_DIR}/linear.c ${CUDA_DIR}/plan.c
    ${CUDA_DIR}/pool.c ${CUDA_DIR}/resident.c ${CUDA_DIR}/stream.c gpu_shim.c)
target_include_directories(hth_cuda_host PUBLIC ${HEARTH_ROOT} ${HEARTH_ROOT}/tests)
target_link_libraries(hth_cuda_host PUBLIC hth_kernels)

include(CheckLanguage)
if(CMAKE_CROSSCOMPILING OR HEARTH_FUZZ)
    return()
endif()
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
    message(STATUS "CUDA kernels on the CPU: not tested (no C++ compiler)")
    return()
endif()
enable_language(CXX)

# hth_shim(NAME): the kernels as a library for the CPU.
function(hth_shim name)
    set(sources attention.cu columns.cu flat.cu group.cu optim.cu quant.cu rows.cu)
    list(TRANSFORM sources PREPEND ${CUDA_DIR}/)
    set_source_files_properties(${sources} PROPERTIES LANGUAGE CXX
        COMPILE_OPTIONS "-x;c++;-include;kernels/shim.h;-Wno-unknown-pragmas")
    add_library(${name} STATIC ${sources} shim.cpp)
    target_include_directories(${name} PRIVATE ${HEARTH_ROOT} ${HEARTH_ROOT}/tests)
    target_link_libraries(${name} PUBLIC stdc++) # tests elsewhere are linked as C
    target_compile_options(${name} PRIVATE -std=c++17 -O2 -Wall -Wextra -ffp-contract=off)
    if(HEARTH_WERROR)
        target_compile_options(${name} PRIVATE -Werror)
    endif()
    if(HEARTH_SANITIZE)
        target_compile_options(${name} PRIVATE -fsanitize=${HEARTH_SANITIZE}
            -fno-sanitize-recover=all)
    endif()
endfunction()
hth_shim(hth_cuda_shim)
hth_test(test_kernels_threads_cards SOURCES test_cards.c LINK hth_cuda_host hth_cuda_shim Threads::Threads
    LABELS unit kernels)
if(HEARTH_SANITIZE MATCHES "thread")
    return() # fibres: ThreadSanitizer does not follow them, so no kernel may run from here on
endif()
hth_test(test_kernels_shim SOURCES test_shim.c LINK hth_kernel_cases hth_cuda_host hth_cuda_shim
    LABELS unit kernels long TIMEOUT 300)
if(TEST test_kernels_shim)
    set_tests_properties(test_kernels_shim PROPERTIES COST 400) # long, and one thread
endif()
hth_test(test_kernels_shim_plant SOURCES test_shim_plant.c
    LINK hth_kernel_cases hth_cuda_host hth_cuda_shim LABELS unit kernels long)
if(TARGET test_kernels_shim_plant)
    target_compile_definitions(test_kernels_shim_plant PRIVATE KERNELS="${CUDA_DIR}")
endif()
hth_test(test_kernels_cuda SOURCES test_cuda.c
    LINK hth_bench_kernels hth_cuda_host hth_cuda_shim
    LABELS unit kernels long TIMEOUT 300)
hth_test(test_kernels_cuda_host SOURCES test_cuda_host.c LINK hth_cuda_host hth_cuda_shim
    LABELS unit kernels)
hth_test(test_kernels_cuda_resident SOURCES test_resident.c LINK hth_cuda_host hth_cuda_shim
    LABELS unit kernels)
hth_test(test_kernels_cuda_group SOURCES test_group.c LINK hth_cuda_host hth_cuda_shim
    LABELS unit kernels)
hth_test(test_kernels_bench_device SOURCES test_bench_device.c
    LINK hth_bench_kernels hth_cuda_host hth_cuda_shim
    LABELS unit kernels)
hth_test(test_kernels_cuda_graph SOURCES test_graph.c LINK hth_cuda_host hth_cuda_shim
    LABELS unit kernels)
hth_test(test_kernels_cuda_torture SOURCES test_cuda_torture.c LINK hth_cuda_host hth_cuda_shim
    LABELS unit kernels)
