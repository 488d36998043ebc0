"""What plays CUDA where no GPU is: that it runs kernels as CUDA does, and that misuse does not pass."""
import itertools

import numpy as np
import pytest
from fused import emulator

try:
    emulator.compiler()
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)

SOURCE = r"""
struct Size { long long n; double factor; };        // as (n, factor)

extern "C" __global__ void sums(const REAL* x, REAL* y, int n)
{
    __shared__ REAL of_warp[32];
    extern __shared__ REAL all[];
    REAL sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[blockIdx.x * n + i];
    for (int k = 16; k > 0; k /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, k);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = sum;
    SYNC
    sum = 0;
    for (int w = 0; w < blockDim.x / 32; w++)
        sum += of_warp[w];
    all[threadIdx.x] = sum;
    if (LEAVE && threadIdx.x == 3)
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        y[blockIdx.x] = all[blockDim.x - 1];
}

extern "C" __global__ void scale(REAL* x, Size size, bool twice)
{
    long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size.n)
        x[i] = (twice ? 2 : 1) * size.factor * x[i];
}

extern "C" __global__ void down(int* x, int* count, int width)
{
    int i = threadIdx.y * blockDim.x + threadIdx.x;
    x[i] = __shfl_down_sync(0xffffffffu, i, 1, width);
    x[i] += 100 * __shfl_sync(0xffffffffu, i, 2, width);
    atomicAdd(count, 1);
    atomicMax(count + 1, i);
    if (__ffs(__ballot_sync(0xffffffffu, i % 32 == 7 || i % 32 == 20)) == 8)
        atomicAdd(count + 2, 1);
}

extern "C" __global__ void places(int* x)
{
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    x[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}
"""
SIZE = np.dtype([("n", np.int64), ("factor", np.float64)])


def module(real="float", sync="__syncthreads();", leave=0):
    return emulator.RawModule(SOURCE, ("-std=c++17", f"-DREAL={real}", f"-DSYNC={sync}", f"-DLEAVE={leave}"))


def size(n, factor=1.0):
    return np.array((n, factor), SIZE)


@pytest.mark.parametrize("real, dtype", [("float", np.float32), ("double", np.float64)])
@pytest.mark.parametrize("threads", [32, 64, 1024])
def test_blocks_threads_barriers_shuffles_and_shared_memory(real, dtype, threads):
    x, y = np.random.default_rng(0).normal(size=(5, 77)).astype(dtype), np.zeros(5, dtype)
    module(real).get_function("sums")((5,), (threads,), (x, y, np.int32(77)), shared_mem=threads * x.itemsize)
    np.testing.assert_allclose(y, x.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_shuffles_within_parts_of_a_warp_ballots_and_atomics():
    for width in (32, 8):
        x, count = np.zeros(64, np.int32), np.zeros(3, np.int32)
        module().get_function("down")((3,), (16, 4), (x, count, np.int32(width)))
        i = np.arange(64)
        below = np.where((i + 1) % width, i + 1, i)
        np.testing.assert_array_equal(x, below + 100 * (i // width * width + 2))
        assert count.tolist() == [3 * 64, 63, 3 * 64]


def test_three_axes_of_blocks_and_threads():
    x = np.zeros(2 * 3 * 4 * 60, np.int32)
    module().get_function("places")((2, 3, 4), (3, 4, 5), (x,))
    np.testing.assert_array_equal(x, [1000 * b + t for b, t in itertools.product(range(24), range(60))])


def test_structures_and_scalars_go_by_value_and_views_stay_views():
    x = np.arange(10, dtype=np.float32)
    module().get_function("scale")((1,), (32,), (x[2:5], size(3, 10.0), np.bool_(True)))
    np.testing.assert_array_equal(x, [0, 1, 40, 60, 80, 5, 6, 7, 8, 9])


def test_without_a_barrier_the_sum_is_wrong():
    x, y = np.ones((9, 77), np.float32), np.zeros(9, np.float32)
    module(sync="").get_function("sums")((9,), (128,), (x, y, np.int32(77)), shared_mem=512)
    assert (y != 77).sum() > 4                              # right where the last warp happens to come last


RACE = r"""
extern "C" __global__ void twice(float* x)              // the second round writes before the first has been read by all
{
    __shared__ float first;
    for (int round = 1; round < 3; round++) {
        if (threadIdx.x == 0)
            first = round;
        __syncthreads();
        x[(round - 1) * blockDim.x + threadIdx.x] = first;
        BETWEEN
    }
}
"""


def test_a_warp_runs_as_far_ahead_as_it_may():
    x = np.zeros((2, 128), np.float32)
    emulator.RawModule(RACE, ("-DBETWEEN=__syncthreads();",)).get_function("twice")((1,), (128,), (x,))
    np.testing.assert_array_equal(x, [[1] * 128, [2] * 128])
    emulator.RawModule(RACE, ("-DBETWEEN=",)).get_function("twice")((20,), (128,), (x,))
    assert (x[0] == 2).any()


def test_a_barrier_that_one_thread_does_not_reach():
    x, y = np.ones((1, 77), np.float32), np.zeros(1, np.float32)
    for _ in range(2):                                      # and what comes after it is not harmed
        with pytest.raises(RuntimeError, match="__syncthreads at line .* 63 of 64 threads; 1 have left"):
            module(leave=1).get_function("sums")((1,), (64,), (x, y, np.int32(77)), shared_mem=256)
    module().get_function("sums")((1,), (64,), (x, y, np.int32(77)), shared_mem=256)
    assert y == 77


def test_a_write_beside_an_array():
    x = np.ones(10, np.float32)
    with pytest.raises(RuntimeError, match="outside of an array of 20 bytes"):
        module().get_function("places")((1,), (6,), (np.zeros(5, np.int32),))
    module().get_function("scale")((1,), (32,), (x[:5], size(5, 3.0), np.bool_(False)))
    np.testing.assert_array_equal(x, [3] * 5 + [1] * 5)


X = np.ones((1, 64), np.float32)
WRONG = {
    "other floats": (X.astype(np.float64), X, np.int32(1)), "other integers": (X, X, np.int64(1)),
    "a Python number": (X, X, 1), "a number for an array": (np.float32(1), X, np.int32(1)), "too few": (X, X),
    "an array for a number": (X, X, np.ones(1, np.int32)), "no array at all": (X, None, np.int32(1)),
}


@pytest.mark.parametrize("args", WRONG.values(), ids=WRONG)
def test_arguments_of_another_kind(args):
    with pytest.raises(TypeError, match="sums: "):
        module().get_function("sums")((1,), (64,), args, shared_mem=256)


@pytest.mark.parametrize("grid, block, shared", [((0,), (32,), 0), ((1, 70000), (32,), 0), ((1,), (1025,), 0),
                                                 ((1,), (0,), 0), ((1,), (32,), 50000)])
def test_launches_that_no_gpu_does(grid, block, shared):
    with pytest.raises(RuntimeError, match="no GPU|shared memory"):
        module().get_function("sums")(grid, block, (X, X, np.int32(1)), shared_mem=shared)


def test_a_source_that_does_not_compile_says_so():
    with pytest.raises(RuntimeError, match="axp"):
        emulator.RawModule('extern "C" __global__ void f(float* x) { x[0] = axp(x[0]); }')
