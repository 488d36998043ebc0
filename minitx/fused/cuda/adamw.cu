// AdamW over all parameters in one launch: a block works on PIECE numbers of one of them.
//
// Where the parameters, their m and v lie stands in a table on the device, which changes as seldom as they do.
// Gradients are new arrays in every step: where they lie travels with the launch, and so does what changes with the
// step.

struct Tensor { REAL *p, *m, *v; long long size, step; };              // its step is the number of one of the Steps
struct Piece { long long tensor, first; };
struct Step { double shrink, b1, b2, eps, rate, root; };
struct Launch { const REAL* g[TENSORS]; Step steps[STEPS]; };           // 4096 bytes are what a launch may carry

// p = shrink p - rate m / (sqrt(v) / root + eps)
//      shrink = 1 - lr weight_decay    rate = lr / (1 - b1^t)    root = sqrt(1 - b2^t)
extern "C" __global__ void adamw(const Tensor* tensors, const Piece* pieces, const Launch now)
{
    const Piece piece = pieces[blockIdx.x];
    const Tensor t = tensors[piece.tensor];
    const Step s = now.steps[t.step];
    const REAL* g = now.g[piece.tensor];
    const REAL b1 = s.b1, rest1 = 1 - s.b1, b2 = s.b2, rest2 = 1 - s.b2;
    const REAL shrink = s.shrink, eps = s.eps, rate = s.rate, root = s.root;
    const long long last = min(piece.first + PIECE, t.size);
    for (long long i = piece.first + threadIdx.x; i < last; i += blockDim.x) {
        REAL m = t.m[i] = b1 * t.m[i] + rest1 * g[i];
        REAL v = t.v[i] = b2 * t.v[i] + rest2 * (g[i] * g[i]);
        t.p[i] = shrink * t.p[i] - rate * (m / (sqrt(v) / root + eps));
    }
}
