// y = x keep gain, element by element; backward is the same with dy.
extern "C" __global__ void dropout(const REAL* x, const bool* keep, REAL* y, long long n, REAL gain)
{
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] * REAL(keep[i]) * gain;
}
