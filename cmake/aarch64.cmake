# aarch64.cmake: builds for 64-bit ARM on another machine; tests run under qemu (tools/test --arch
# aarch64). HEARTH_SYSROOT is where tools/setup unpacked the libraries of that architecture.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${HEARTH_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${HEARTH_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEARTH_SYSROOT)
