/* Attention of a group of queries of one K/V head over one block of at most SB_BLOCK keys.
 *
 * A score is eight chains of multiply-adds over head_dim (one per lane) and one fixed tree of
 * additions; a value sum is one chain over the keys in logical order.  How queries and keys are
 * tiled changes no bit.
 */
#ifndef SB_ATTENTION_BLOCK_H
#define SB_ATTENTION_BLOCK_H

#include "attention.h"
#include "simd.h"

/* Keys and values of one K/V head in one block. */
typedef struct {
    const float *keys, *values; /* of the head in slot 0 */
    const int64_t *offsets;     /* of the keys' slots, in floats */
    int count;
} head_block;

/* The slots of the block that comes after, fetched piece by piece while this one is computed: the
 * processor does not foresee jumps from slot to slot, and memory likes whole slots in order. */
typedef struct {
    const float *cache;
    const int64_t *offsets;
    int count;                 /* keys left */
    int64_t part, piece, slot; /* floats: fetched of the first key left; per step; per slot */
} fetcher;

/* Working memory of one worker for one block. */
typedef struct {
    head_block now;
    fetcher next_keys, next_values;
    float *scores;       /* [queries, SB_BLOCK] */
    const float **query; /* [queries] */
    float **record;      /* [queries] */
    int *valid;          /* [queries] keys of the block the query attends to */
    int queries;
} attention_work;

SB_INLINE void fetch_piece(fetcher *f) {
    if (f->count == 0) return;
    const float *from = f->cache + *f->offsets + f->part;
    for (int64_t d = 0; d < f->piece; d += 16) __builtin_prefetch(from + d, 0, 2);
    f->part += f->piece;
    if (f->part < f->slot) return;
    f->part = 0;
    f->offsets++;
    f->count--;
}

/* Eight floats from d on; lanes past the end of the row are 0. */
SB_INLINE v8 load_row(const float *row, int64_t d, int64_t dim) {
    return d + 8 <= dim ? v8_load(row + d) : v8_load_first(row + d, dim - d);
}

SB_INLINE void score_chunk(v8 *sum, const float *const *query, const float *const *key, const int nq, int64_t d,
                           int64_t dim) {
    v8 q[3];
    SB_FOR(4, i, nq, q[i] = load_row(query[i], d, dim);)
    SB_FOR(4, j, 4, {
        v8 k = load_row(key[j], d, dim);
        SB_FOR(4, i, nq, sum[4 * i + j] = v8_fma(q[i], k, sum[4 * i + j]);)
    })
}

/* Scores of `nq` <= 3 queries (a constant once inlined) against four keys. */
SB_INLINE void score_tile(const attention_work *w, int first, int j, int64_t dim, const int nq) {
    v8 sum[12];
    const float *query[3], *key[4];
    SB_FOR(12, i, 4 * nq, sum[i] = v8_zero();)
    SB_FOR(4, i, nq, query[i] = w->query[first + i];)
    /* Past the last key it is repeated: computed and never used. */
    SB_FOR(4, i, 4, key[i] = w->now.keys + w->now.offsets[j + i < w->now.count ? j + i : w->now.count - 1];)
    int64_t d = 0;
    for (; d + 8 <= dim; d += 8) score_chunk(sum, query, key, nq, d, d + 8);
    if (d < dim) score_chunk(sum, query, key, nq, d, dim);
    SB_FOR(4, i, nq, v8_sum4(w->scores + (first + i) * SB_BLOCK + j, sum + 4 * i);)
}

static void score_group(attention_work *w, int first, int count, int64_t dim) {
    for (int j = 0; j < w->now.count; j += 4) {
        for (int i = 0; first == 0 && i < 4; i++) fetch_piece(&w->next_keys);
        if (count == 3) score_tile(w, first, j, dim, 3);
        if (count == 2) score_tile(w, first, j, dim, 2);
        if (count == 1) score_tile(w, first, j, dim, 1);
    }
}

/* Turns the scores of one query into exponentials relative to their maximum; lanes from `valid` on
 * become 0 without being looked at.  The record receives the maximum and the sum. */
static void exponentiate(float *scores, int valid, float scale, float *record) {
    const v8 nothing = v8_set1(-INFINITY);
    v8 top = nothing, sum = v8_zero();
    for (int j = 0; j < valid; j += 8) {
        v8 s = v8_select(v8_first(valid - j), v8_load(scores + j) * v8_set1(scale), nothing);
        v8_store(scores + j, s);
        top = v8_max(top, s);
    }
    record[0] = v8_top(top);
    for (int j = 0; j < valid; j += 8) {
        v8 e = v8_exp(v8_load(scores + j) - v8_set1(record[0]));
        v8_store(scores + j, e);
        sum = sum + e;
    }
    record[1] = v8_sum(sum);
}

/* Adds keys [from, to) to `nv` vectors of the value sums of `nq` queries; from = 0 starts the sums. */
SB_INLINE void value_tile(attention_work *w, int first, int from, int to, const int nq, const int nv, int64_t d,
                          int64_t dim) {
    v8 sum[12];
    float *out[3];
    const head_block now = w->now;
    const float *p = w->scores + first * SB_BLOCK;
    fetcher ahead = w->next_values;
    if (first || d) ahead.count = 0; /* once per block is enough */
    SB_FOR(4, i, nq, out[i] = w->record[first + i] + SB_RECORD_HEAD + d;)
    SB_FOR(12, i, nq *nv, sum[i] = from ? v8_load(out[i / nv] + 8 * (i % nv)) : v8_zero();)
    for (int j = from; j < to; j++) {
        const float *row = now.values + now.offsets[j];
        v8 weight[3];
        fetch_piece(&ahead);
        SB_FOR(4, i, nq, weight[i] = v8_set1(p[i * SB_BLOCK + j]);)
        SB_FOR(4, k, nv, {
            v8 v = load_row(row, d + 8 * k, dim);
            SB_FOR(4, i, nq, sum[i * nv + k] = v8_fma(weight[i], v, sum[i * nv + k]);)
        })
    }
    if (!first && !d) w->next_values = ahead;
    SB_FOR(12, i, nq *nv, v8_store(out[i / nv] + 8 * (i % nv), sum[i]);)
}

/* Whole vectors first: the extent given to the tile tells the compiler that no row ends inside it. */
SB_INLINE void value_sums(attention_work *w, int first, int from, int to, int64_t dim, const int nq) {
    int64_t d = 0;
    for (; d + 32 <= dim; d += 32) value_tile(w, first, from, to, nq, 4, d, d + 32);
    for (; d + 8 <= dim; d += 8) value_tile(w, first, from, to, nq, 1, d, d + 8);
    if (d < dim) value_tile(w, first, from, to, nq, 1, d, dim);
}

/* Queries that see fewer keys than their neighbours must not read the others' values (0 x NaN is
 * NaN), so a group shares the keys that all of it sees and each query adds its own rest. */
static void value_group(attention_work *w, int first, int count, int64_t dim) {
    int common = SB_BLOCK;
    for (int i = first; i < first + count; i++) common = w->valid[i] < common ? w->valid[i] : common;
    if (common && count == 3) value_sums(w, first, 0, common, dim, 3);
    if (common && count == 2) value_sums(w, first, 0, common, dim, 2);
    if (common && count == 1) value_sums(w, first, 0, common, dim, 1);
    for (int i = first; i < first + count; i++)
        if (w->valid[i] > common) value_sums(w, i, common, w->valid[i], dim, 1);
}

/* Four queries go as two pairs: one alone has too few sums to hide the latency of an addition. */
static int group_size(int left) { return left == 4 || left == 2 ? 2 : left < 3 ? left : 3; }

/* One block for all queries of the work. */
static void attend_block(attention_work *w, int64_t dim, float scale) {
    for (int i = 0, n; i < w->queries; i += n) {
        n = group_size(w->queries - i);
        score_group(w, i, n, dim);
        for (int q = i; q < i + n; q++)
            if (w->valid[q]) exponentiate(w->scores + q * SB_BLOCK, w->valid[q], scale, w->record[q]);
        value_group(w, i, n, dim);
    }
}

#endif
