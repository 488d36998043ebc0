// GELU of x + bias, a block for a row of that width. Backward makes g again from x: reading one array costs more than an
// erf. Without a bias the n numbers are cut into rows of any width, the last of them as long as it happens to be.

#define ROOT_2_PI REAL(0.7978845608028654)      // sqrt(2 / pi)
#define CUBIC REAL(0.044715)
#define BEYOND REAL(1000)       // there every gate is 0 or 1, and 0 * 1000 is 0 where 0 * inf would be NaN

// P(Z < x), or GPT-2's closed form of it
__device__ REAL gate(REAL x, bool closed)
{
    if (closed)
        return 1 / (1 + exp(-2 * ROOT_2_PI * x * (1 + CUBIC * x * x)));
    return REAL(0.5) * erfc(-x * REAL(0.7071067811865476));
}

extern "C" __global__ void gelu_forward(const REAL* x, const REAL* bias, REAL* y, long long n, long long width,
                                        bool closed)
{
    long long start = blockIdx.x * width;
    for (long long j = threadIdx.x; j < width && start + j < n; j += blockDim.x) {
        REAL t = bias ? x[start + j] + bias[j] : x[start + j];
        t = t < -BEYOND ? -BEYOND : t;          // NaN stays NaN
        y[start + j] = t * gate(t, closed);
    }
}

extern "C" __global__ void gelu_backward(const REAL* x, const REAL* bias, const REAL* dy, REAL* dx, long long n,
                                         long long width, bool closed)
{
    long long start = blockIdx.x * width;
    for (long long j = threadIdx.x; j < width && start + j < n; j += blockDim.x) {
        REAL t = bias ? x[start + j] + bias[j] : x[start + j];
        t = t < -BEYOND ? -BEYOND : t > BEYOND ? BEYOND : t;
        REAL g = gate(t, closed);
        REAL slope = closed ? 2 * ROOT_2_PI * g * (1 - g) * (1 + 3 * CUBIC * t * t)
                            : exp(REAL(-0.5) * t * t) * REAL(0.3989422804014327);      // 1 / sqrt(2 pi)
        dx[start + j] = (g + t * slope) * dy[start + j];
    }
}
