// dweight[ids] += dy without atomic sums, whose last bits would differ from run to run: one block adds up all rows
// of an id, always in the same order.

// ends (2, V), full of -1: where each id stands first, counted from the end, and last
extern "C" __global__ void embedding_ends(const long long* ids, int* ends, long long N, long long V)
{
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N)
        return;
    atomicMax(&ends[ids[i]], int(N - 1 - i));
    atomicMax(&ends[V + ids[i]], int(i));
}

// Block (i, y) works on the y-th 128 columns, if ids[i] stands there for the first time. Its 8 warps look for the
// id in 32 places at once and add the rows that they find, four columns a thread.
extern "C" __global__ void embedding_backward(const REAL* dy, const long long* ids, const int* ends, REAL* dweight,
                                              long long N, long long V, long long C, long long padding)
{
    __shared__ REAL sums[8][128];
    const long long id = ids[blockIdx.x], last = ends[V + id], column = blockIdx.y * 128LL;
    if (blockIdx.x != N - 1 - ends[id] || id == padding)
        return;
    REAL sum[4] = {0, 0, 0, 0};
    for (long long start = blockIdx.x + 32 * threadIdx.y; start <= last; start += 32 * 8) {
        long long mine = start + threadIdx.x;
        unsigned int found = __ballot_sync(ALL, mine <= last && ids[mine] == id);
        for (; found; found &= found - 1) {                     // its lowest bit goes
            const REAL* row = dy + (start + __ffs(found) - 1) * C;
            for (int k = 0; k < 4; k++) {
                long long c = column + threadIdx.x + 32 * k;
                if (c < C)
                    sum[k] += row[c];
            }
        }
    }
    for (int k = 0; k < 4; k++)
        sums[threadIdx.y][threadIdx.x + 32 * k] = sum[k];
    __syncthreads();
    const int c = threadIdx.x + 32 * threadIdx.y;
    if (c >= 128 || column + c >= C)
        return;
    REAL all = 0;
    for (int warp = 0; warp < 8; warp++)
        all += sums[warp][c];
    dweight[id * C + column + c] = all;
}
