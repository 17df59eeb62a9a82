/* Attention of a group of queries of one K/V head over one block of at most SB_BLOCK keys.
 *
 * Every score is one chain of multiply-adds over head_dim, every value sum one chain over the keys
 * in logical order: how queries and lanes are tiled changes no bit.
 */
#ifndef SB_ATTENTION_BLOCK_H
#define SB_ATTENTION_BLOCK_H

#include "attention.h"
#include "simd.h"

/* Working memory of one worker for one block. */
typedef struct {
    int64_t offsets[SB_BLOCK]; /* of a key's first float in the cache, K/V head 0 */
    float *panel;              /* [head_dim rounded up to 8, SB_BLOCK]: keys transposed */
    float *scores;             /* [queries, SB_BLOCK] */
    const float **query;       /* [queries] */
    float **record;            /* [queries] */
    int *valid;                /* [queries] keys of the block the query attends to */
    int queries;
} attention_work;

/* Keys become lanes. Lanes past the last key repeat it: they are computed and never used. */
static void pack_keys(float *panel, const float *keys, const int64_t *offsets, int count, int64_t dim) {
    for (int j = 0; j < count; j += 8) {
        const float *row[8];
        for (int i = 0; i < 8; i++) row[i] = keys + offsets[j + i < count ? j + i : count - 1];
        int64_t d = 0;
        for (; d + 8 <= dim; d += 8) {
            v8 block[8];
            for (int i = 0; i < 8; i++) block[i] = v8_load(row[i] + d);
            v8_transpose(block);
            for (int i = 0; i < 8; i++) v8_store(panel + (d + i) * SB_BLOCK + j, block[i]);
        }
        for (; d < dim; d++)
            for (int i = 0; i < 8; i++) panel[d * SB_BLOCK + j + i] = row[i][d];
    }
}

/* Scores of `nq` queries against `nv` vectors of keys.  Inlined with constants, at most 12 sums. */
SB_INLINE void score_tile(const attention_work *w, int first, int key, int64_t dim, const int nq, const int nv) {
    v8 sum[12];
    const float *query[6];
    SB_UNROLL for (int i = 0; i < nq * nv; i++) sum[i] = v8_zero();
    SB_UNROLL for (int i = 0; i < nq; i++) query[i] = w->query[first + i];
    const float *panel = w->panel + key;
    for (int64_t d = 0; d < dim; d++, panel += SB_BLOCK) {
        v8 keys[4];
        SB_UNROLL for (int j = 0; j < nv; j++) keys[j] = v8_load(panel + 8 * j);
        SB_UNROLL for (int i = 0; i < nq; i++) {
            v8 q = v8_set1(query[i][d]);
            SB_UNROLL for (int j = 0; j < nv; j++) sum[i * nv + j] = v8_fma(q, keys[j], sum[i * nv + j]);
        }
    }
    float *scores = w->scores + first * SB_BLOCK + key;
    SB_UNROLL for (int i = 0; i < nq; i++)
        SB_UNROLL for (int j = 0; j < nv; j++) v8_store(scores + i * SB_BLOCK + 8 * j, sum[i * nv + j]);
}

/* Computes whole tiles: scores past `count` come from stale lanes and are masked later. */
static void score_block(const attention_work *w, int count, int64_t dim) {
    int first = 0;
    for (; first + 6 <= w->queries; first += 6)
        for (int key = 0; key < count; key += 16) score_tile(w, first, key, dim, 6, 2);
    for (; first + 3 <= w->queries; first += 3)
        for (int key = 0; key < count; key += 32) score_tile(w, first, key, dim, 3, 4);
    for (; first < w->queries; first++)
        for (int key = 0; key < count; key += 32) score_tile(w, first, key, dim, 1, 4);
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
SB_INLINE void value_tile(const attention_work *w, const float *values, int first, int from, int to,
                          const int nq, const int nv, int64_t d) {
    v8 sum[12];
    float *out[6];
    const float *p = w->scores + first * SB_BLOCK;
    SB_UNROLL for (int i = 0; i < nq; i++) out[i] = w->record[first + i] + SB_RECORD_HEAD + d;
    SB_UNROLL for (int i = 0; i < nq * nv; i++)
        sum[i] = from ? v8_load(out[i / nv] + 8 * (i % nv)) : v8_zero();
    for (int j = from; j < to; j++) {
        const float *row = values + w->offsets[j] + d;
        v8 v[4];
        SB_UNROLL for (int k = 0; k < nv; k++) v[k] = v8_load(row + 8 * k);
        SB_UNROLL for (int i = 0; i < nq; i++) {
            v8 weight = v8_set1(p[i * SB_BLOCK + j]);
            SB_UNROLL for (int k = 0; k < nv; k++) sum[i * nv + k] = v8_fma(weight, v[k], sum[i * nv + k]);
        }
    }
    SB_UNROLL for (int i = 0; i < nq * nv; i++) v8_store(out[i / nv] + 8 * (i % nv), sum[i]);
}

/* The last head_dim % 8 values, with the multiply-add of the vector path in lane 0. */
static void value_tail(const attention_work *w, const float *values, int query, int from, int to, int64_t d,
                       int64_t dim) {
    float *out = w->record[query] + SB_RECORD_HEAD;
    const float *p = w->scores + query * SB_BLOCK;
    for (; d < dim; d++) {
        v8 sum = v8_set1(from ? out[d] : 0.0f);
        for (int j = from; j < to; j++) sum = v8_fma(v8_set1(p[j]), v8_set1(values[w->offsets[j] + d]), sum);
        out[d] = sum[0];
    }
}

static void value_sums(const attention_work *w, const float *values, int first, int count, int from, int to,
                       int64_t dim) {
    int64_t d = 0;
    if (count == 6)
        for (; d + 16 <= dim; d += 16) value_tile(w, values, first, from, to, 6, 2, d);
    if (count == 3)
        for (; d + 32 <= dim; d += 32) value_tile(w, values, first, from, to, 3, 4, d);
    for (int i = first; i < first + count; i++) {
        int64_t e = d;
        for (; e + 32 <= dim; e += 32) value_tile(w, values, i, from, to, 1, 4, e);
        for (; e + 8 <= dim; e += 8) value_tile(w, values, i, from, to, 1, 1, e);
        value_tail(w, values, i, from, to, e, dim);
    }
}

/* Queries that see fewer keys than their neighbours must not read the others' values (0 x NaN is
 * NaN), so a group shares the keys that all of it sees and each query adds its own rest. */
static void value_group(const attention_work *w, const float *values, int first, int count, int64_t dim) {
    int common = SB_BLOCK;
    for (int i = first; i < first + count; i++) common = w->valid[i] < common ? w->valid[i] : common;
    if (common) value_sums(w, values, first, count, 0, common, dim);
    for (int i = first; i < first + count; i++)
        if (w->valid[i] > common) value_sums(w, values, i, 1, common, w->valid[i], dim);
}

/* One block for all queries of the work.  `keys` and `values` point at the K/V head's first slot. */
static void attend_block(attention_work *w, const float *keys, const float *values, int count, int64_t dim,
                         float scale) {
    pack_keys(w->panel, keys, w->offsets, count, dim);
    score_block(w, count, dim);
    for (int i = 0; i < w->queries; i++)
        if (w->valid[i]) exponentiate(w->scores + i * SB_BLOCK, w->valid[i], scale, w->record[i]);
    int first = 0;
    for (; first + 6 <= w->queries; first += 6) value_group(w, values, first, 6, dim);
    for (; first + 3 <= w->queries; first += 3) value_group(w, values, first, 3, dim);
    for (; first < w->queries; first++) value_group(w, values, first, 1, dim);
}

#endif
