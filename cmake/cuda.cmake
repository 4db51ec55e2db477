# The CUDA plug-in. HEARTH_CUDA=AUTO builds it where nvcc is found, ON demands it, OFF leaves it out.
# All architectures that the toolkit knows from sm_75 up are compiled for, and PTX of the newest for
# cards that come later; HEARTH_CUDA_ARCHITECTURES narrows that, for quick builds.
set(HEARTH_CUDA AUTO CACHE STRING "CUDA plug-in: AUTO, ON or OFF")
set_property(CACHE HEARTH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(HEARTH_CUDA_ARCHITECTURES "all" CACHE STRING
    "CUDA architectures: all (from sm_75), or a list as of CMAKE_CUDA_ARCHITECTURES")

set(HEARTH_CUDA_FOUND OFF)
if(HEARTH_CUDA STREQUAL "OFF" OR HEARTH_SANITIZE OR HEARTH_FUZZ OR CMAKE_CROSSCOMPILING)
    return() # sanitizers see the kernels through the CPU's shim (tests/kernels/shim.h)
endif()
include(CheckLanguage)
# A toolkit that is installed but not on the path.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(HEARTH_NVCC nvcc HINTS /usr/local/cuda/bin)
    if(HEARTH_NVCC)
        set(CMAKE_CUDA_COMPILER ${HEARTH_NVCC})
    endif()
endif()
# The compiler's own check needs one that this toolkit knows.
set(CMAKE_CUDA_ARCHITECTURES 80)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit)
endif()
if(NOT CMAKE_CUDA_COMPILER OR NOT CUDAToolkit_FOUND)
    if(HEARTH_CUDA STREQUAL "ON")
        message(FATAL_ERROR "HEARTH_CUDA=ON, but there is no CUDA toolkit (nvcc): install one, set "
            "CUDACXX, or use -DHEARTH_CUDA=OFF")
    endif()
    message(STATUS "CUDA plug-in: off (no nvcc)")
    return()
endif()
set(HEARTH_CUDA_FOUND ON)

# The architectures that nvcc knows, from sm_75 up: code for each and PTX of the newest.
if(HEARTH_CUDA_ARCHITECTURES STREQUAL "all")
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch
        OUTPUT_VARIABLE known OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX MATCHALL "compute_[0-9]+" known "${known}")
    set(HEARTH_CUDA_LIST "")
    foreach(arch ${known})
        string(REPLACE "compute_" "" arch ${arch})
        if(arch GREATER_EQUAL 75)
            list(APPEND HEARTH_CUDA_LIST ${arch})
        endif()
    endforeach()
    list(SORT HEARTH_CUDA_LIST COMPARE NATURAL)
    list(POP_BACK HEARTH_CUDA_LIST newest)
    list(TRANSFORM HEARTH_CUDA_LIST APPEND "-real")
    list(APPEND HEARTH_CUDA_LIST ${newest})
else()
    set(HEARTH_CUDA_LIST ${HEARTH_CUDA_ARCHITECTURES})
endif()
list(JOIN HEARTH_CUDA_LIST " " text)
message(STATUS "CUDA plug-in: ${CUDAToolkit_VERSION}, architectures ${text}")
