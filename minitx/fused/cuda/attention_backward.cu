// The gradients of attention, behind attention.cu, with its tiles: scores and probabilities are made again.

// dq = scale ds k      ds = p (dp - along)  dp = do v' keep gain  along = <<dp, p>> = <<do, o>>, which is kept for dk
extern "C" __global__ void attention_backward_q(const REAL* q, const REAL* k, const REAL* v, const bool* mask,
                                                const bool* keep, const REAL* o, const REAL* top, const REAL* total,
                                                const REAL* grad_o, REAL* along, REAL* dq, const Heads a)
{
    __shared__ Rows q_rows, do_rows, k_rows, v_rows;
    __shared__ Scores ds;
    const long long head = blockIdx.x, first = (long long)blockIdx.y * TILE;
    const bool* mask_ = mask ? mask + head_of(a.mask, blockIdx.x) : mask;
    const bool* keep_ = keep ? keep + head_of(a.keep, blockIdx.x) : keep;
    k += head_of(a.k, blockIdx.x);
    v += head_of(a.v, blockIdx.x);
    o += head_of(a.o, blockIdx.x);
    load(q_rows, q + head_of(a.q, blockIdx.x), a.q, first, a.T, a.K, REAL(a.scale));
    load(do_rows, grad_o + head_of(a.grad_o, blockIdx.x), a.grad_o, first, a.T, a.D, 1);

    REAL made[EACH][WIDE], top_[EACH], total_[EACH], along_[EACH];
    clear(made);
    for (int i = 0; i < EACH; i++) {
        const long long t = first + threadIdx.y + SIDE * i;
        REAL here = 0;
        if (t < a.T)
            for (long long c = threadIdx.x; c < a.D; c += SIDE)
                here += do_rows[threadIdx.y + SIDE * i][c]          // which this thread has loaded itself
                    * o[t * a.o.step[3] + c * a.o.step[4]];
        along_[i] = row_sum(here);
        top_[i] = t < a.T ? top[head * a.T + t] : 0;
        total_[i] = t < a.T ? total[head * a.T + t] : 1;
        if (threadIdx.x == 0 && t < a.T)
            along[head * a.T + t] = along_[i];
    }
    const long long end = keys_before(a, first + TILE);
    for (long long start = 0; start < end; start += TILE) {
        __syncthreads();
        load(k_rows, k, a.k, start, a.S, a.K, 1);
        load(v_rows, v, a.v, start, a.S, a.D, 1);
        __syncthreads();
        REAL s[EACH][EACH], dw[EACH][EACH];
        products(s, q_rows, k_rows);
        products(dw, do_rows, v_rows);
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            #pragma unroll
            for (int j = 0; j < EACH; j++) {
                const long long t = first + threadIdx.y + SIDE * i, key = start + threadIdx.x + SIDE * j;
                const REAL p = (sees(a, mask_, t, key) ? exp(s[i][j] - top_[i]) : 0) / total_[i];
                const REAL dp = dw[i][j] * kept(a, keep_, t, key);
                ds[threadIdx.y + SIDE * i][threadIdx.x + SIDE * j] = p * (dp - along_[i]);
            }
        __syncthreads();
        mix(made, ds, k_rows);
    }
    store(dq + head_of(a.dq, blockIdx.x), a.dq, made, first, a.T, a.K, REAL(a.scale));
}

// dk = ds' (scale q)      dv = w' do  w = p keep gain
extern "C" __global__ void attention_backward_kv(const REAL* q, const REAL* k, const REAL* v, const bool* mask,
                                                 const bool* keep, const REAL* top, const REAL* total,
                                                 const REAL* grad_o, const REAL* along, REAL* dk, REAL* dv,
                                                 const Heads a)
{
    __shared__ Rows k_rows, v_rows, q_rows, do_rows;
    __shared__ Scores ds, w;
    const long long head = blockIdx.x, first = (long long)blockIdx.y * TILE;
    const bool* mask_ = mask ? mask + head_of(a.mask, blockIdx.x) : mask;
    const bool* keep_ = keep ? keep + head_of(a.keep, blockIdx.x) : keep;
    q += head_of(a.q, blockIdx.x);
    grad_o += head_of(a.grad_o, blockIdx.x);
    load(k_rows, k + head_of(a.k, blockIdx.x), a.k, first, a.S, a.K, 1);
    load(v_rows, v + head_of(a.v, blockIdx.x), a.v, first, a.S, a.D, 1);

    REAL made_k[EACH][WIDE], made_v[EACH][WIDE];
    clear(made_k);
    clear(made_v);
    for (long long start = first_query(a, first); start < a.T; start += TILE) {
        __syncthreads();
        load(q_rows, q, a.q, start, a.T, a.K, REAL(a.scale));
        load(do_rows, grad_o, a.grad_o, start, a.T, a.D, 1);
        __syncthreads();
        REAL s[EACH][EACH], dw[EACH][EACH];
        products(s, k_rows, q_rows);
        products(dw, v_rows, do_rows);
        #pragma unroll
        for (int j = 0; j < EACH; j++) {
            const long long t = start + threadIdx.x + SIDE * j, place = head * a.T + t;
            const bool there = t < a.T;
            const REAL top_ = there ? top[place] : 0, total_ = there ? total[place] : 1;
            const REAL along_ = there ? along[place] : 0;
            #pragma unroll
            for (int i = 0; i < EACH; i++) {
                const long long key = first + threadIdx.y + SIDE * i;
                const REAL p = (sees(a, mask_, t, key) ? exp(s[i][j] - top_) : 0) / total_;
                const REAL factor = kept(a, keep_, t, key);
                w[threadIdx.y + SIDE * i][threadIdx.x + SIDE * j] = p * factor;
                ds[threadIdx.y + SIDE * i][threadIdx.x + SIDE * j] = p * (dw[i][j] * factor - along_);
            }
        }
        __syncthreads();
        mix(made_k, ds, q_rows);
        mix(made_v, w, do_rows);
    }
    store(dk + head_of(a.dk, blockIdx.x), a.dk, made_k, first, a.S, a.K, 1);
    store(dv + head_of(a.dv, blockIdx.x), a.dv, made_v, first, a.S, a.D, 1);
}
