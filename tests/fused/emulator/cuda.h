// CUDA played on the processor: enough of it for the kernels of minitx/fused/cuda to run where no GPU is.
//
// The threads of a block take turns on one thread of the operating system, each on a stack of its own. A thread
// runs until it waits, at a barrier or in a shuffle, or is done; a warp runs until all its threads wait at a
// barrier, and so as far ahead of the others as it may. Which comes first is diced, anew after every barrier, by
// numbers that are the same in every process: what works only in one order shows, and shows again. Shared memory is
// full of NaN when a block begins.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__ static
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#ifdef __ELF__
#define __shared__ static __attribute__((section("shared_memory")))
extern "C" __attribute__((weak, visibility("hidden"))) char __start_shared_memory[], __stop_shared_memory[];
#else
#define __shared__ static
#endif

struct dim3 { unsigned int x, y, z; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

namespace emulator {

enum State { READY, AT_BARRIER, IN_SHUFFLE, DONE };

struct Thread {
    jmp_buf here;
    State state;
    int line;                   // where it waits
    unsigned int mask;          // of the shuffle that it waits in
    bool left;                  // it waits for having read, not for having written
    uint64_t slot;              // what it gives to the others in a shuffle
};

static const int MOST = 1024, STACK = 1 << 18, SHARED = 48 << 10;
static Thread threads[MOST];
static int prepared, count, current;
static jmp_buf scheduler;
static ucontext_t context;
static void (*kernel)(void**);
static void** arguments;
static char message[300];
alignas(16) static char dynamic_memory[SHARED];

// The life of a thread: wait for a turn, run the kernel, and again.
static void live()
{
    int me = current;
    for (;;) {
        if (!_setjmp(threads[me].here))
            _longjmp(scheduler, 1);
        kernel(arguments);
        threads[me].state = DONE;
    }
}

static __attribute__((noinline)) void born(int i, char* stack)
{
    current = i;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, live, 0);
    if (!_setjmp(scheduler))
        setcontext(&context);
}

// A turn of thread i.
static __attribute__((noinline)) void turn(int i)
{
    current = i;
    threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    if (!_setjmp(scheduler))
        _longjmp(threads[i].here, 1);
}

static __attribute__((noinline)) void wait(State state, int line, unsigned int mask, bool left)
{
    Thread& me = threads[current];
    me.state = state, me.line = line, me.mask = mask, me.left = left;
    if (!_setjmp(me.here))
        _longjmp(scheduler, 1);
}

static inline void barrier(int line) { wait(AT_BARRIER, line, 0, false); }

template <class T> T shuffle(int line, unsigned int mask, T value, int source)
{
    int warp = current / 32 * 32;
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves eight bytes at most");
    memcpy(&threads[current].slot, &value, sizeof(T));
    wait(IN_SHUFFLE, line, mask, false);
    memcpy(&value, &threads[warp + source].slot, sizeof(T));
    wait(IN_SHUFFLE, line, mask, true);
    return value;
}

template <class T> T shuffle_xor(int line, unsigned int mask, T value, int k, int width = 32)
{
    int lane = current % 32, source = lane ^ k;
    return shuffle(line, mask, value, source / width > lane / width ? lane : source);
}

template <class T> T shuffle_down(int line, unsigned int mask, T value, int k, int width = 32)
{
    int lane = current % 32, source = lane + k;
    return shuffle(line, mask, value, source / width > lane / width ? lane : source);
}

template <class T> T shuffle_from(int line, unsigned int mask, T value, int source, int width = 32)
{
    int lane = current % 32;
    return shuffle(line, mask, value, lane / width * width + source % width);
}

static unsigned int ballot(int line, unsigned int mask, bool vote)
{
    unsigned int votes = 0;
    threads[current].slot = vote;
    wait(IN_SHUFFLE, line, mask, false);
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && threads[current / 32 * 32 + lane].slot)
            votes |= 1u << lane;
    wait(IN_SHUFFLE, line, mask, true);
    return votes;
}

// Say what the first thread that waits is waiting for.
static bool stuck(int done)
{
    int i = 0, here = 0;
    while (threads[i].state == DONE)
        i++;
    for (int j = 0; j < count; j++)
        here += threads[j].state == threads[i].state && threads[j].line == threads[i].line;
    snprintf(message, sizeof message, "%s at line %d is reached by %d of %d threads; %d have left the kernel",
             threads[i].state == AT_BARRIER ? "__syncthreads" : "a shuffle", threads[i].line, here, count, done);
    return false;
}

// The next number of the dice, below n.
static int roll(int n)
{
    static uint32_t dice = 1;
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % n;
}

// Whether a thread of this warp can go on.
static bool ready(int warp)
{
    for (int i = 32 * warp; i < count && i < 32 * warp + 32; i++)
        if (threads[i].state == READY)
            return true;
    return false;
}

// Every thread of a warp that can go on has a turn; then shuffles end whose lanes have all come.
static void run(int warp)
{
    int base = 32 * warp, lanes = count - base < 32 ? count - base : 32;
    int first = roll(lanes), way = roll(2) ? 1 : lanes - 1;
    for (int k = 0; k < lanes; k++) {
        int i = base + (first + k * way) % lanes;
        if (threads[i].state == READY)
            turn(i);
    }
    for (int i = base; i < base + lanes; i++) {
        const Thread me = threads[i];
        bool all = me.state == IN_SHUFFLE;
        for (int lane = 0; all && lane < 32; lane++) {
            const Thread& other = threads[base + lane];
            if (me.mask >> lane & 1)
                all = lane < lanes && other.state == IN_SHUFFLE && other.line == me.line && other.mask == me.mask
                      && other.left == me.left;
        }
        for (int lane = 0; all && lane < 32; lane++)
            if (me.mask >> lane & 1)
                threads[base + lane].state = READY;
    }
}

// One block. Whether it came to its end.
static bool block()
{
#ifdef __ELF__
    if (__start_shared_memory)
        memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
#endif
    memset(dynamic_memory, 0xff, SHARED);
    for (int i = 0; i < count; i++)
        threads[i].state = READY;
    int warps = (count + 31) / 32;
    for (;;) {
        int first = roll(warps), way = roll(2) ? 1 : warps - 1;
        for (int k = 0; k < warps; k++)
            while (ready((first + k * way) % warps))
                run((first + k * way) % warps);
        int done = 0, waiting = 0;
        for (int i = 0; i < count; i++) {
            done += threads[i].state == DONE;
            waiting += threads[i].state == AT_BARRIER && threads[i].line == threads[0].line;
        }
        if (done == count)
            return true;
        if (waiting < count)
            return stuck(done);
        for (int i = 0; i < count; i++)
            threads[i].state = READY;
    }
}

static const char* launch(void (*body)(void**), const unsigned int* grid, const unsigned int* shape, void** args)
{
    static char* stacks = (char*)malloc((size_t)MOST * STACK);
    gridDim = {grid[0], grid[1], grid[2]}, blockDim = {shape[0], shape[1], shape[2]};
    count = shape[0] * shape[1] * shape[2], kernel = body, arguments = args;
    for (; prepared < count; prepared++)
        born(prepared, stacks + (size_t)prepared * STACK);
    bool back = roll(2);                    // blocks come in no order that a kernel could rely on
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (unsigned int x = 0; x < grid[0]; x++) {
                blockIdx.x = back ? grid[0] - 1 - x : x;
                if (!block()) {
                    prepared = 0;           // these threads hang in the middle of a kernel: the next one gets others
                    return message;
                }
            }
    return nullptr;
}

}  // namespace emulator

#define __syncthreads() emulator::barrier(__LINE__)
#define __shfl_xor_sync(...) emulator::shuffle_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulator::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_sync(...) emulator::shuffle_from(__LINE__, __VA_ARGS__)
#define __ballot_sync(...) emulator::ballot(__LINE__, __VA_ARGS__)

template <class T> static T min(T a, T b) { return b < a ? b : a; }
template <class T> static T max(T a, T b) { return a < b ? b : a; }
template <class T> static T atomicAdd(T* at, T value) { T before = *at; *at += value; return before; }
template <class T> static T atomicMax(T* at, T value) { T before = *at; *at = max(before, value); return before; }
static inline int __ffs(unsigned int bits) { return __builtin_ffs(bits); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, sizeof x); return x; }
