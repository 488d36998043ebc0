// What the families share. kernels.py puts this file in front of each of them.
//
// REAL is float or double. Sizes and places are long long: an array may have more than 2^31 numbers.

#define ALL 0xffffffffu                         // the lanes of a warp
#define INFINITE REAL(__longlong_as_double(0x7ff0000000000000LL))
#define LARGEST REAL(sizeof(REAL) == 4 ? 3.4028234663852886e38 : 1.7976931348623157e308)

// Where the rows of an array (..., T, S) lie, or of a mask that broadcasts to it: the sizes of the axes before the
// last, and how far it is from one entry to the next along every axis, 0 along one that was stretched. All axes
// before the last two together count the heads.
struct View { long long size[4], step[5]; };

// Where a head begins. A launch has less than 2^31 blocks, and 32 bits are divided much sooner than 64.
__device__ long long head_of(const View& at, unsigned int head)
{
    long long place = 0;
    for (int axis = 2; axis >= 0; axis--) {
        unsigned int size = at.size[axis];
        place += head % size * at.step[axis];
        head /= size;
    }
    return place;
}

// The sum of x over the threads of the block, the same for each of them, bit by bit. A block is of whole warps.
__device__ REAL block_sum(REAL x)
{
    __shared__ REAL of_warp[32];
    for (int k = 16; k > 0; k /= 2)
        x += __shfl_xor_sync(ALL, x, k);
    __syncthreads();                            // the sums of the last call have been read
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < blockDim.x / 32; w++)
        x += of_warp[w];
    return x;
}

// The sum of exp x over some x, as total exp(top). The largest x is top, as long as it is finite: then no
// difference x - top is inf - inf, a row of -inf has total 0, and one with inf has total inf.
struct LogSum { REAL top, total; };

__device__ LogSum nothing()
{
    return {-LARGEST, 0};
}

__device__ void include(LogSum& s, REAL x)
{
    if (x > s.top) {
        REAL top = fmin(x, LARGEST);
        s.total *= exp(s.top - top);
        s.top = top;
    }
    s.total += exp(x - s.top);                  // x is NaN: so is the total from now on
}

__device__ LogSum joined(LogSum a, LogSum b)
{
    REAL top = fmax(a.top, b.top);
    return {top, a.total * exp(a.top - top) + b.total * exp(b.top - top)};
}

// All LogSums of the block as one.
__device__ LogSum block_joined(LogSum s)
{
    __shared__ LogSum of_warp[32];
    for (int k = 16; k > 0; k /= 2)
        s = joined(s, {__shfl_xor_sync(ALL, s.top, k), __shfl_xor_sync(ALL, s.total, k)});
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = s;
    __syncthreads();
    s = of_warp[0];
    for (int w = 1; w < blockDim.x / 32; w++)
        s = joined(s, of_warp[w]);
    return s;
}
