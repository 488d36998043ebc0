// Softmax along the last axis. A block works on one row x (N,); mask may be null, or strided.

extern "C" __global__ void softmax_forward(const REAL* x, const bool* mask, REAL* y, long long N, View at)
{
    long long row = blockIdx.x;
    x += row * N, y += row * N;
    unsigned int T = at.size[3];
    if (mask)
        mask += head_of(at, blockIdx.x / T) + blockIdx.x % T * at.step[3];

    LogSum s = nothing();
    for (long long j = threadIdx.x; j < N; j += blockDim.x)
        if (!mask || mask[j * at.step[4]])
            include(s, x[j]);
    s = block_joined(s);
    REAL total = s.total == 0 ? 1 : s.total;    // nothing may be chosen
    for (long long j = threadIdx.x; j < N; j += blockDim.x)
        y[j] = (!mask || mask[j * at.step[4]] ? exp(x[j] - s.top) : 0) / total;
}

// dx = y (dy - <<dy, y>>)
extern "C" __global__ void softmax_backward(const REAL* dy, const REAL* y, REAL* dx, long long N)
{
    long long row = blockIdx.x;
    dy += row * N, y += row * N, dx += row * N;

    REAL along = 0;
    for (long long j = threadIdx.x; j < N; j += blockDim.x)
        along += dy[j] * y[j];
    along = block_sum(along);
    for (long long j = threadIdx.x; j < N; j += blockDim.x)
        dx[j] = y[j] * (dy[j] - along);
}
