/* SPDX-License-Identifier: Apache-2.0 */
/* shim.cpp: the fibres behind shim.h. */
#include "kernels/shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#include <vector>

#include "kernels/shim_control.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

dim3 hth_shim_thread, hth_shim_block, hth_shim_block_dim, hth_shim_grid_dim;
unsigned char *hth_shim_shared;

namespace
{
const size_t STACK_BYTES = 128 << 10;
const unsigned WARP = 32, THREADS_MAX = 1024;
const size_t SHARED_MAX = 48 << 10;
const int LAUNCH_FAILED = 719, LAUNCH_BAD = 9;

enum state { READY, AT_BARRIER, AT_SHUFFLE, DONE };

/* swapcontext keeps the signal mask by a system call, which would take most of the tests' time. */
#if defined(__x86_64__)
typedef void *context; /* its stack, on which its registers lie */
extern "C" void hth_shim_swap(context *from, context *to);
__asm__(".text\n"
        ".type hth_shim_swap, @function\n"
        "hth_shim_swap:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov (%rsi), %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
        "ret\n"
        ".size hth_shim_swap, . - hth_shim_swap\n");

void make_context(context *c, void *stack, size_t bytes, void (*run)())
{
    void **top = static_cast<void **>(stack) + bytes / sizeof(void *);
    *--top = NULL; /* where a call would have left its return address: aligned as after one */
    *--top = reinterpret_cast<void *>(run);
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    *c = top;
}
#else
typedef ucontext_t context;

void hth_shim_swap(context *from, context *to)
{
    swapcontext(from, to);
}

void make_context(context *c, void *stack, size_t bytes, void (*run)())
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = NULL;
    makecontext(c, run, 0);
}
#endif

struct fibre {
    context where;
    void *stack, *fake_stack;
    enum state state;
    int value;        /* of a barrier */
    uint64_t slot[2]; /* of a shuffle, alternating: a fast lane may be one ahead */
    unsigned phase;
};

std::vector<fibre> fibres;
context scheduler;
#ifdef WITH_ASAN
void *scheduler_fake;
const void *scheduler_stack;
size_t scheduler_stack_bytes;
#endif
unsigned now, any_value;
hth_shim_fn *body;
const void *body_arg;
uint64_t random_state = 1;
char failure[200];

struct barrier {
    char name[64]; /* "columns.cu:49" */
    uint64_t reached;
};
std::vector<barrier> barriers; /* in order of the first thread that reached them */
int left_out = -1;

/* A header's barrier is compiled into several files; it counts once. */
int number_of(const hth_shim_place *place)
{
    const char *slash = strrchr(place->file, '/');
    barrier b = {};
    snprintf(b.name, sizeof(b.name), "%s:%u", slash != NULL ? slash + 1 : place->file, place->line);
    for (size_t i = 0; i < barriers.size(); i++) {
        if (strcmp(barriers[i].name, b.name) == 0)
            return (int)i;
    }
    barriers.push_back(b);
    return (int)barriers.size() - 1;
}

/* splitmix64 */
unsigned draw(unsigned below)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (unsigned)((z ^ z >> 31) % below);
}

void to_scheduler()
{
    fibre &f = fibres[now];
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&f.fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
    hth_shim_swap(&f.where, &scheduler);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(f.fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void fibre_main()
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_stack_bytes);
#endif
    for (;;) {
        body(body_arg);
        fibres[now].state = DONE;
        to_scheduler();
    }
}

void run_thread(unsigned t)
{
    fibre &f = fibres[t];
    now = t;
    hth_shim_thread = dim3(t, 0, 0);
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake, f.stack, STACK_BYTES);
#endif
    hth_shim_swap(&scheduler, &f.where);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
}

void make_fibre(fibre &f)
{
    if (f.stack == NULL) /* kept until the process ends */
        f.stack =
            mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#ifdef WITH_ASAN
    ASAN_UNPOISON_MEMORY_REGION(f.stack, STACK_BYTES);
#endif
    make_context(&f.where, f.stack, STACK_BYTES, fibre_main);
}

/* Fibres wait at the top of their loop between blocks; those of a failed block are made again. */
void prepare(unsigned threads, bool anew)
{
    if (fibres.size() < threads) {
        size_t old = fibres.size();
        fibres.resize(threads);
        for (size_t i = 0; i < threads; i++) {
            if (i >= old)
                fibres[i].stack = NULL;
            make_fibre(fibres[i]); /* a moved context points into its old place */
        }
        return;
    }
    for (size_t i = 0; anew && i < fibres.size(); i++)
        make_fibre(fibres[i]);
}

unsigned count(unsigned first, unsigned end, enum state state)
{
    unsigned n = 0;
    for (unsigned t = first; t < end; t++)
        n += fibres[t].state == state;
    return n;
}

void release(unsigned first, unsigned end, enum state from)
{
    for (unsigned t = first; t < end; t++) {
        if (fibres[t].state == from)
            fibres[t].state = READY;
    }
}

/* Runs a warp until all its fibres wait or end. */
void run_warp(unsigned first)
{
    for (;;) {
        unsigned turn = draw(WARP);
        for (unsigned i = 0; i < WARP; i++) {
            unsigned t = first + (turn + i) % WARP;
            if (fibres[t].state == READY)
                run_thread(t);
        }
        if (count(first, first + WARP, AT_SHUFFLE) != WARP)
            return;
        release(first, first + WARP, AT_SHUFFLE);
    }
}

bool run_block(unsigned threads)
{
    unsigned warps = threads / WARP;
    for (unsigned t = 0; t < threads; t++) {
        fibres[t].state = READY;
        fibres[t].phase = 0;
    }
    for (;;) {
        while (count(0, threads, READY) > 0) {
            unsigned warp = draw(warps);
            while (count(warp * WARP, warp * WARP + WARP, READY) == 0)
                warp = (warp + 1) % warps;
            run_warp(warp * WARP);
        }
        unsigned waiting = count(0, threads, AT_BARRIER), done = count(0, threads, DONE);
        if (done == threads)
            return true;
        if (waiting + done != threads) {
            snprintf(failure, sizeof(failure),
                     "block %u: %u threads wait at a barrier, %u in a shuffle, %u have ended",
                     hth_shim_block.x, waiting, count(0, threads, AT_SHUFFLE), done);
            return false;
        }
        if (done > 0) {
            snprintf(failure, sizeof(failure),
                     "block %u: %u threads wait at a barrier, %u have ended", hth_shim_block.x,
                     waiting, done);
            return false;
        }
        any_value = 0;
        for (unsigned t = 0; t < threads; t++)
            any_value |= fibres[t].value != 0;
        release(0, threads, AT_BARRIER);
    }
}

bool run_blocks(dim3 grid, unsigned threads, size_t shared)
{
    std::vector<uint64_t> order;
    uint64_t blocks = (uint64_t)grid.x * grid.y;
    for (uint64_t i = 0; i < blocks; i++)
        order.push_back(i);
    for (uint64_t i = blocks; i > 1; i--)
        std::swap(order[i - 1], order[draw((unsigned)i)]);
    for (uint64_t i : order) {
        hth_shim_block = dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x), 0);
        memset(hth_shim_shared, 0xff, shared);
        if (!run_block(threads))
            return false;
    }
    return true;
}
} // namespace

int hth_shim_barrier(hth_shim_place *place, int value)
{
    if (place->number < 0)
        place->number = number_of(place);
    barriers[(size_t)place->number].reached++;
    if (place->number == left_out)
        return value;
    fibres[now].value = value;
    fibres[now].state = AT_BARRIER;
    to_scheduler();
    return (int)any_value;
}

uint64_t hth_shim_shuffle(uint64_t value, unsigned step)
{
    unsigned other = now / WARP * WARP + (now % WARP ^ step), phase = fibres[now].phase++ % 2;
    fibres[now].slot[phase] = value;
    fibres[now].state = AT_SHUFFLE;
    to_scheduler();
    return fibres[other].slot[phase];
}

int hth_shim_run(dim3 grid, dim3 block, size_t shared, hth_shim_fn *fn, const void *arg)
{
    static bool failed_before;
    if (block.y != 1 || block.z != 1 || block.x == 0 || block.x % WARP != 0 ||
        block.x > THREADS_MAX || grid.x == 0 || grid.y == 0 || grid.z != 1 || grid.y > 65535 ||
        grid.x > 0x7fffffff || shared > SHARED_MAX) {
        snprintf(failure, sizeof(failure),
                 "no card takes a launch of %u x %u blocks of %u, %zu bytes", grid.x, grid.y,
                 block.x, shared);
        return LAUNCH_BAD;
    }
    prepare(block.x, failed_before);
    body = fn;
    body_arg = arg;
    hth_shim_block_dim = block;
    hth_shim_grid_dim = grid;
    hth_shim_shared = static_cast<unsigned char *>(malloc(shared + 1)); /* exact, for ASan */
    hth_shim_memory(true);
    failed_before = !run_blocks(grid, block.x, shared);
    hth_shim_memory(false);
    free(hth_shim_shared);
    return failed_before ? LAUNCH_FAILED : 0;
}

void hth_shim_seed(uint64_t seed)
{
    random_state = seed;
}

const char *hth_shim_failure(void)
{
    return failure;
}

uint32_t hth_shim_barriers(void)
{
    return (uint32_t)barriers.size();
}

const char *hth_shim_barrier_name(uint32_t barrier)
{
    return barriers[barrier].name;
}

uint64_t hth_shim_barrier_reached(uint32_t barrier)
{
    return barriers[barrier].reached;
}

void hth_shim_leave_out(int barrier)
{
    left_out = barrier;
}
