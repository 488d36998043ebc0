// Attention in tiles of TILE queries and TILE keys: of the T x S scores no more than one tile is ever there. Dao et
// al. 2022, "FlashAttention", sections 3.1 and 3.2.
//
// A block is of 8 x 8 threads. Of a tile thread (x, y) has the scores in rows y, y + 8, ... and columns x, x + 8,
// ..., of what a tile makes (o, dq, dk, dv) the numbers in the same rows and in columns x, x + 8, ... below WIDTH.
// Rows are queries, but where dk and dv are made, keys. Eight threads that share a row are neighbours in a warp and
// agree by shuffles.

#define SIDE 8
#define EACH (TILE / SIDE)                      // rows, or columns of a tile, that one thread has
#define WIDE (WIDTH / SIDE)                     // columns of a row as wide as a head

typedef REAL Rows[TILE][WIDTH + 1];             // queries, keys ... of a tile; one more, so that the numbers of
typedef REAL Scores[TILE][TILE + 1];            // a column lie in different banks

struct Heads {                                  // where everything lies, and what is the same in every head
    View q, k, v, o, grad_o, dq, dk, dv, mask, keep;
    long long T, S, K, D, causal;
    double scale, gain;
};

// TILE rows of x, a head, from `first` on, times `factor`; 0 beyond the last row and column.
__device__ void load(Rows& rows, const REAL* x, const View& at, long long first, long long n_rows, long long width,
                     REAL factor)
{
    for (int i = threadIdx.y; i < TILE; i += SIDE)
        for (int c = threadIdx.x; c < WIDTH; c += SIDE)
            rows[i][c] = first + i < n_rows && c < width
                ? factor * x[(first + i) * at.step[3] + c * at.step[4]] : 0;
}

// The rows that a thread has made, times `factor`, into x.
__device__ void store(REAL* x, const View& at, const REAL (&made)[EACH][WIDE], long long first, long long n_rows,
                      long long width, REAL factor)
{
    for (int i = 0; i < EACH; i++)
        for (int n = 0; n < WIDE; n++) {
            long long row = first + threadIdx.y + SIDE * i;
            int c = threadIdx.x + SIDE * n;
            if (row < n_rows && c < width)
                x[row * at.step[3] + c * at.step[4]] = factor * made[i][n];
        }
}

// s = a b'
__device__ void products(REAL (&s)[EACH][EACH], const Rows& a, const Rows& b)
{
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            s[i][j] = 0;
    #pragma unroll 8
    for (int c = 0; c < WIDTH; c++) {
        REAL of_b[EACH];
        for (int j = 0; j < EACH; j++)
            of_b[j] = b[threadIdx.x + SIDE * j][c];
        for (int i = 0; i < EACH; i++) {
            REAL of_a = a[threadIdx.y + SIDE * i][c];
            for (int j = 0; j < EACH; j++)
                s[i][j] += of_a * of_b[j];
        }
    }
}

// made += w b
__device__ void mix(REAL (&made)[EACH][WIDE], const Scores& w, const Rows& b)
{
    #pragma unroll 4
    for (int t = 0; t < TILE; t++) {
        REAL of_w[EACH];
        for (int i = 0; i < EACH; i++)
            of_w[i] = w[threadIdx.y + SIDE * i][t];
        for (int n = 0; n < WIDE; n++) {
            REAL of_b = b[t][threadIdx.x + SIDE * n];
            for (int i = 0; i < EACH; i++)
                made[i][n] += of_w[i] * of_b;
        }
    }
}

__device__ void clear(REAL (&made)[EACH][WIDE])
{
    for (int i = 0; i < EACH; i++)
        for (int n = 0; n < WIDE; n++)
            made[i][n] = 0;
}

// Sum over the eight threads that share a row.
__device__ REAL row_sum(REAL x)
{
    for (int k = SIDE / 2; k > 0; k /= 2)
        x += __shfl_xor_sync(ALL, x, k);
    return x;
}

// Whether query t sees key s. The last query sees the last key; mask, of this head, may be null.
__device__ bool sees(const Heads& a, const bool* mask, long long t, long long s)
{
    return t < a.T && s < a.S && (!a.causal || s <= t + a.S - a.T)
        && (!mask || mask[t * a.mask.step[3] + s * a.mask.step[4]]);
}

// What dropout makes of a weight: the factor that it is multiplied by.
__device__ REAL kept(const Heads& a, const bool* keep, long long t, long long s)
{
    if (!keep)
        return 1;
    return t < a.T && s < a.S && keep[t * a.keep.step[3] + s * a.keep.step[4]] ? REAL(a.gain) : REAL(0);
}

// How many keys are seen by the queries before t, and from which query on the keys from s on are seen.
__device__ long long keys_before(const Heads& a, long long t)
{
    return a.causal ? min(a.S, max(0LL, min(t, a.T) + a.S - a.T)) : a.S;
}

__device__ long long first_query(const Heads& a, long long s)
{
    return a.causal ? max(0LL, s - (a.S - a.T)) : 0;
}

// o = e v / total      e = exp(s - top)  total = sum e
// With the largest score so far as top: a larger one makes what there is smaller (Milakov and Gimelshein 2018). As in
// LogSum, top is always finite.
extern "C" __global__ void attention_forward(const REAL* q, const REAL* k, const REAL* v, const bool* mask,
                                             const bool* keep, REAL* o, REAL* top, REAL* total, const Heads a)
{
    __shared__ Rows q_rows, k_rows, v_rows;
    __shared__ Scores e;
    const long long head = blockIdx.x, first = (long long)blockIdx.y * TILE;
    const bool* mask_ = mask ? mask + head_of(a.mask, blockIdx.x) : mask;
    const bool* keep_ = keep ? keep + head_of(a.keep, blockIdx.x) : keep;
    k += head_of(a.k, blockIdx.x);
    v += head_of(a.v, blockIdx.x);
    load(q_rows, q + head_of(a.q, blockIdx.x), a.q, first, a.T, a.K, REAL(a.scale));

    REAL made[EACH][WIDE], largest[EACH], sum[EACH];
    clear(made);
    for (int i = 0; i < EACH; i++) {
        largest[i] = -LARGEST;
        sum[i] = 0;
    }
    const long long end = keys_before(a, first + TILE);
    for (long long start = 0; start < end; start += TILE) {
        __syncthreads();                        // the last tile has been read
        load(k_rows, k, a.k, start, a.S, a.K, 1);
        load(v_rows, v, a.v, start, a.S, a.D, 1);
        __syncthreads();
        REAL s[EACH][EACH];
        products(s, q_rows, k_rows);
        for (int i = 0; i < EACH; i++) {
            const long long t = first + threadIdx.y + SIDE * i;
            REAL before = largest[i], here = 0;
            for (int j = 0; j < EACH; j++) {
                if (!sees(a, mask_, t, start + threadIdx.x + SIDE * j))
                    s[i][j] = -INFINITE;
                largest[i] = fmax(largest[i], s[i][j]);
            }
            for (int lane = SIDE / 2; lane > 0; lane /= 2)
                largest[i] = fmax(largest[i], __shfl_xor_sync(ALL, largest[i], lane));
            largest[i] = fmin(largest[i], LARGEST);
            for (int j = 0; j < EACH; j++) {
                const int column = threadIdx.x + SIDE * j;
                const REAL e_ = exp(s[i][j] - largest[i]);
                here += e_;
                e[threadIdx.y + SIDE * i][column] = e_ * kept(a, keep_, t, start + column);
            }
            const REAL fade = exp(before - largest[i]);
            sum[i] = sum[i] * fade + row_sum(here);
            for (int n = 0; n < WIDE; n++)
                made[i][n] *= fade;
        }
        __syncthreads();
        mix(made, e, v_rows);
    }
    for (int i = 0; i < EACH; i++) {
        const long long t = first + threadIdx.y + SIDE * i;
        sum[i] = sum[i] == 0 ? 1 : sum[i];      // a query that sees nothing
        for (int n = 0; n < WIDE; n++)
            made[i][n] /= sum[i];
        if (threadIdx.x == 0 && t < a.T) {
            top[head * a.T + t] = largest[i];
            total[head * a.T + t] = sum[i];
        }
    }
    store(o + head_of(a.o, blockIdx.x), a.o, made, first, a.T, a.D, 1);
}
