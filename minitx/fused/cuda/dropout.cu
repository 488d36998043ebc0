// y = x keep gain + residual, element by element; backward is the same with dy, and without a residual.
extern "C" __global__ void dropout(const REAL* x, const REAL* residual, const bool* keep, REAL* y, long long n, REAL gain)
{
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    REAL kept = x[i] * REAL(keep[i]) * gain;
    y[i] = residual ? kept + residual[i] : kept;
}
