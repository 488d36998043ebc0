// Cross entropy. A block works on one row of logits x (V,) and reads it once; a = label smoothing.

// x - top, but where a finite x ran over to -inf the lowest finite number: finite logits, finite loss.
__device__ REAL representable(REAL x, REAL top)
{
    REAL c = x - top;
    return x > -INFINITE && c < -LARGEST ? -LARGEST : c;
}

// loss = -(1 - a) ln p[target] - a <ln p>, of each row; and top, total, from which p = exp(x - top) / total comes
// again
extern "C" __global__ void loss_forward(const REAL* x, const long long* targets, REAL* loss, REAL* top, REAL* total,
                                        long long V, long long ignored, REAL a)
{
    long long row = blockIdx.x, target = targets[row];
    if (target == ignored) {
        if (threadIdx.x == 0)
            loss[row] = 0;
        return;
    }
    x += row * V;
    LogSum s = nothing();
    for (long long j = threadIdx.x; j < V; j += blockDim.x)
        include(s, x[j]);
    s = block_joined(s);
    REAL mean = 0;
    if (a > 0) {                                // once more, for the sum of all ln p
        for (long long j = threadIdx.x; j < V; j += blockDim.x)
            mean += representable(x[j], s.top) / V;
        mean = block_sum(mean);
    }
    if (threadIdx.x == 0) {
        loss[row] = log(s.total) - (1 - a) * representable(x[target], s.top) - a * mean;
        top[row] = s.top;
        total[row] = s.total;
    }
}

// y = sum of losses / n, by one block; n = how many targets are not ignored, or 1. Divided first: a mean of finite
// losses is finite.
extern "C" __global__ void loss_sum(const REAL* loss, const long long* targets, REAL* y, REAL* n, long long N,
                                    long long ignored, bool mean)
{
    REAL counted = 0;
    if (mean)
        for (long long i = threadIdx.x; i < N; i += blockDim.x)
            counted += targets[i] != ignored;
    counted = fmax(block_sum(counted), REAL(1));
    REAL sum = 0;
    for (long long i = threadIdx.x; i < N; i += blockDim.x)
        sum += loss[i] / counted;
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        *y = sum;
        *n = counted;
    }
}

// dx = (p - a / V - (1 - a) onehot(target)) dy / n; dy has one number a row, or one for all: then step is 0
extern "C" __global__ void loss_backward(const REAL* x, const long long* targets, const REAL* top, const REAL* total,
                                         const REAL* dy, const REAL* n, REAL* dx, long long V, long long ignored,
                                         long long step, REAL a)
{
    long long row = blockIdx.x, target = targets[row];
    x += row * V, dx += row * V;
    REAL share = n ? dy[row * step] / *n : dy[row * step];
    for (long long j = threadIdx.x; j < V; j += blockDim.x)
        if (target == ignored)
            dx[j] = 0;
        else
            dx[j] = (exp(x[j] - top[row]) / total[row] - a / V - (j == target ? 1 - a : 0)) * share;
}
