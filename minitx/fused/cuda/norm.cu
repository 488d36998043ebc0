// Layer norm, and RMS norm, which is the same with mu = 0. A block works on one row x (C,).

extern "C" __global__ void norm_forward(const REAL* x, const REAL* gamma, const REAL* beta, REAL* y, REAL* xhat,
                                        REAL* r, long long C, REAL eps, bool centred)
{
    long long row = blockIdx.x;
    x += row * C, y += row * C, xhat += row * C;

    REAL mu = 0;
    if (centred) {
        for (long long j = threadIdx.x; j < C; j += blockDim.x)
            mu += x[j];
        mu = block_sum(mu) / C;
    }
    REAL root = sqrt(REAL(C)), variance = 0;
    for (long long j = threadIdx.x; j < C; j += blockDim.x) {
        REAL c = (x[j] - mu) / root;            // divided first: a sum of squares of 1e18 fits
        variance += c * c;
    }
    REAL scale = 1 / sqrt(block_sum(variance) + eps);
    if (threadIdx.x == 0)
        r[row] = scale;
    for (long long j = threadIdx.x; j < C; j += blockDim.x) {
        REAL h = (x[j] - mu) * scale;
        xhat[j] = h;
        if (gamma)
            h *= gamma[j];
        if (beta)
            h += beta[j];
        y[j] = h;
    }
}

// dx = r (g - <g> - xhat <g xhat>), g = gamma dy
extern "C" __global__ void norm_backward(const REAL* dy, const REAL* xhat, const REAL* r, const REAL* gamma, REAL* dx,
                                         long long C, bool centred)
{
    long long row = blockIdx.x;
    dy += row * C, xhat += row * C, dx += row * C;

    REAL mean = 0, along = 0;
    for (long long j = threadIdx.x; j < C; j += blockDim.x) {
        REAL g = gamma ? gamma[j] * dy[j] : dy[j];
        mean += g;
        along += g * xhat[j];
    }
    mean = centred ? block_sum(mean) / C : 0;
    along = block_sum(along) / C;
    for (long long j = threadIdx.x; j < C; j += blockDim.x) {
        REAL g = gamma ? gamma[j] * dy[j] : dy[j];
        dx[j] = r[row] * (g - mean - xhat[j] * along);
    }
}

// dgamma = sum xhat dy and dbeta = sum dy over some rows: block (x, y) sums 32 columns of the y-th part of them,
// always in the same order. What is left to add up is one row a part.
extern "C" __global__ void norm_parameters(const REAL* dy, const REAL* xhat, REAL* dgamma, REAL* dbeta, long long N,
                                           long long C, long long rows)
{
    __shared__ REAL sums[2][8][32];
    long long c = blockIdx.x * 32 + threadIdx.x, first = blockIdx.y * rows, last = min(first + rows, N);
    REAL a = 0, b = 0;
    if (c < C)
        for (long long n = first + threadIdx.y; n < last; n += 8) {
            a += xhat[n * C + c] * dy[n * C + c];
            b += dy[n * C + c];
        }
    sums[0][threadIdx.y][threadIdx.x] = a;
    sums[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y > 0 || c >= C)
        return;
    for (int k = 1; k < 8; k++) {
        a += sums[0][k][threadIdx.x];
        b += sums[1][k][threadIdx.x];
    }
    dgamma[blockIdx.y * C + c] = a;
    dbeta[blockIdx.y * C + c] = b;
}
