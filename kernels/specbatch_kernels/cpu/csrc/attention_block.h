/* Attention of a tile's queries over one block of at most SB_BLOCK keys.
 *
 * A score is eight chains of multiply-adds over head_dim (one per lane) and one fixed tree of
 * additions; a value sum is one chain over the keys in logical order.  How queries, keys and heads
 * are tiled changes no bit.
 *
 * Keys, then values, are walked in chunks of whole slots that all heads use before the next chunk.
 * Meanwhile the slots of the next block are fetched in their order in memory, a few lines per key:
 * the processor does not foresee jumps from slot to slot, and it stalls on many lines at once.
 */
#ifndef SB_ATTENTION_BLOCK_H
#define SB_ATTENTION_BLOCK_H

#include "attention.h"
#include "attention_lanes.h"

/* Most queries that share the loads of keys and values. */
#define QUERY_GROUP 6

/* Floats of a chunk: leaves room for queries, scores and sums in the first-level cache. */
#define CHUNK_FLOATS 3072

/* Some keys, or their values. */
typedef struct {
    const float *cache;
    const int64_t *offsets; /* of the slots, in floats */
    int count;
} slot_list;

/* Slots that are wanted later, piece by piece. */
typedef struct {
    slot_list left;
    int64_t part, piece, slot; /* floats: fetched of the first slot left; per fetch; per slot */
} fetcher;

/* Floats per query for its scores: the last vector of scores may start at any key. */
#define SCORE_ROW (SB_BLOCK + 16)

/* One block of a tile and the working memory for it.  Queries are ordered by K/V head. */
typedef struct {
    int64_t dim, kv_heads, slot; /* floats per head; heads; floats per slot */
    float scale;
    slot_list keys, values;
    fetcher next_keys, next_values; /* of the block that probably comes after */
    float *scores;       /* [queries, SCORE_ROW] */
    const float **query; /* [queries] */
    float **record;      /* [queries] */
    int *valid;          /* [queries] keys of the block the query attends to */
    int head_queries;    /* queries of one K/V head */
} attention_work;

/* Called once per key and head of the block at work: a slot has as many pieces as there are heads. */
SB_INLINE void fetch_piece(fetcher *f) {
    if (!f->left.count) return;
    const float *from = f->left.cache + *f->left.offsets + f->part;
    for (int64_t d = 0; d < f->piece; d += 16) __builtin_prefetch(from + d, 0, 3);
    f->part += f->piece;
    if (f->part < f->slot) return;
    f->part = 0;
    f->left.offsets++;
    f->left.count--;
}

/* Keys per chunk: whole slots, in multiples of the keys that are scored together.  With many
 * queries memory does not matter, and every chunk costs reading and writing the sums of all. */
static int chunk_keys(const attention_work *w) {
    int64_t keys = CHUNK_FLOATS / w->slot / SCORE_KEYS * SCORE_KEYS;
    if (w->head_queries > QUERY_GROUP) return SB_BLOCK;
    return keys < SCORE_KEYS ? SCORE_KEYS : keys < SB_BLOCK ? (int)keys : SB_BLOCK;
}

SB_INLINE void score_step(vt *sum, const float *const *query, const float *const *key, const int nq, int64_t d,
                          int64_t dim) {
    vt q[SCORE_QUERIES];
    SB_FOR(6, i, nq, q[i] = load_query(query[i], d, dim);)
    SB_FOR(4, j, 4, {
        vt k = load_key(key, j, d, dim);
        SB_FOR(6, i, nq, sum[4 * i + j] = vt_fma(q[i], k, sum[4 * i + j]);)
    })
}

/* Scores of `nq` <= SCORE_QUERIES queries (a constant once inlined) against the SCORE_KEYS keys from j on. */
SB_INLINE void score_tile(const attention_work *w, int first, int64_t head, int j, const int nq) {
    vt sum[SUMS];
    const float *query[SCORE_QUERIES], *key[SCORE_KEYS], *cache = w->keys.cache + head * w->dim;
    int64_t last = w->keys.count - 1;
    SB_FOR(SUMS, i, 4 * nq, sum[i] = vt_zero();)
    SB_FOR(6, i, nq, query[i] = w->query[first + i];)
    /* Past the last key it is repeated: computed and never used. */
    SB_FOR(8, i, SCORE_KEYS, key[i] = cache + w->keys.offsets[j + i < last ? j + i : last];)
    int64_t d = 0;
    for (; d + 8 <= w->dim; d += 8) score_step(sum, query, key, nq, d, d + 8);
    if (d < w->dim) score_step(sum, query, key, nq, d, w->dim);
    SB_FOR(6, i, nq, add_lanes(w->scores + (first + i) * SCORE_ROW + j, sum + 4 * i);)
}

/* The first group of a head fetches for all. */
static void score_group(attention_work *w, int first, int count, int64_t head, int from, int to) {
    int fetches = first % w->head_queries == 0;
    for (int j = from; j < to; j += SCORE_KEYS) {
        for (int i = 0; fetches && i < SCORE_KEYS; i++) fetch_piece(&w->next_keys);
        for (int i = 0; count == 6 && i < 6; i += SCORE_QUERIES) score_tile(w, first + i, head, j, SCORE_QUERIES);
        if (count == 3) score_tile(w, first, head, j, 3);
        if (count == 2) score_tile(w, first, head, j, 2);
        if (count == 1) score_tile(w, first, head, j, 1);
    }
}

/* Turns the scores of one query into exponentials relative to their maximum; lanes from `valid` on
 * become 0 without being looked at.  The record receives the maximum and the sum.  Both are taken eight lanes
 * at a time: the order is part of the result. */
static void exponentiate(float *scores, int valid, float scale, float *record) {
    const v8 nothing = v8_set1(-INFINITY);
    const int end = (valid + VT_LANES - 1) / VT_LANES * VT_LANES;
    v8 top = nothing, sum = v8_zero();
    for (int j = 0; j < end; j += 8) {
        v8 s = v8_select(v8_first(valid - j), v8_load(scores + j) * v8_set1(scale), nothing);
        v8_store(scores + j, s);
        top = v8_max(top, s);
    }
    record[0] = v8_top(top);
    for (int j = 0; j < end; j += VT_LANES) {
        vt_store(scores + j, vt_exp(vt_load(scores + j) - vt_set1(record[0])));
        for (int i = j; i < j + VT_LANES; i += 8) sum = sum + v8_load(scores + i);
    }
    record[1] = v8_sum(sum);
}

/* A vector of values from d on; lanes past the end of the row are 0. */
SB_INLINE vt load_values(const float *row, int64_t d, int64_t dim) {
    return d + VT_LANES <= dim ? vt_load(row + d) : vt_load_first(row + d, dim - d);
}

/* Adds keys [from, to) to `nv` vectors of the value sums of `nq` queries; from = 0 starts the sums. */
SB_INLINE void value_tile(attention_work *w, int first, const float *values, int from, int to, const int nq,
                          const int nv, int64_t d, int64_t dim) {
    vt sum[SUMS];
    float *out[QUERY_GROUP];
    const float *p = w->scores + first * SCORE_ROW;
    const int64_t *offsets = w->values.offsets;
    fetcher ahead = w->next_values;
    const int fetches = d == 0 && first % w->head_queries == 0; /* the first group of a head fetches for all */
    if (!fetches) ahead.left.count = 0;
    SB_FOR(6, i, nq, out[i] = w->record[first + i] + SB_RECORD_HEAD + d;)
    SB_FOR(SUMS, i, nq * nv, sum[i] = from ? vt_load(out[i / nv] + VT_LANES * (i % nv)) : vt_zero();)
    for (int j = from; j < to; j++) {
        const float *row = values + offsets[j];
        vt v[4];
        fetch_piece(&ahead);
        SB_FOR(4, k, nv, v[k] = load_values(row, d + VT_LANES * k, dim);)
        SB_FOR(6, i, nq, {
            vt weight = vt_set1(p[i * SCORE_ROW + j]);
            SB_FOR(4, k, nv, sum[i * nv + k] = vt_fma(weight, v[k], sum[i * nv + k]);)
        })
    }
    if (fetches) w->next_values = ahead;
    SB_FOR(SUMS, i, nq * nv, vt_store(out[i / nv] + VT_LANES * (i % nv), sum[i]);)
}

/* Whole vectors first: the extent given to the tile tells the compiler that no row ends inside it. */
SB_INLINE void value_sums(attention_work *w, int first, int64_t head, int from, int to, const int nq) {
    const float *values = w->values.cache + head * w->dim;
    const int most = SUMS / nq, nv = most > 4 ? 4 : most; /* sums, values and a weight fit the registers */
    const int64_t one = VT_LANES;
    int64_t d = 0;
    for (; d + one * nv <= w->dim; d += one * nv) value_tile(w, first, values, from, to, nq, nv, d, d + one * nv);
    for (; d + one * 2 <= w->dim; d += one * 2) value_tile(w, first, values, from, to, nq, 2, d, d + one * 2);
    for (; d + one <= w->dim; d += one) value_tile(w, first, values, from, to, nq, 1, d, d + one);
    if (d < w->dim) value_tile(w, first, values, from, to, nq, 1, d, w->dim);
}

/* Functions of their own: together they are more than the compiler can keep in registers well. */
SB_OUTLINE void value_sums_1(attention_work *w, int first, int64_t head, int from, int to) {
    value_sums(w, first, head, from, to, 1);
}
SB_OUTLINE void value_sums_2(attention_work *w, int first, int64_t head, int from, int to) {
    value_sums(w, first, head, from, to, 2);
}
SB_OUTLINE void value_sums_3(attention_work *w, int first, int64_t head, int from, int to) {
    value_sums(w, first, head, from, to, 3);
}

SB_OUTLINE void value_sums_6(attention_work *w, int first, int64_t head, int from, int to) {
    value_sums(w, first, head, from, to, 6);
}

static int smallest(int a, int b) { return a < b ? a : b; }

/* Adds the keys [from, to) that each query attends to.  Queries that see fewer keys than their
 * neighbours must not read the others' values (0 x NaN is NaN), so a group shares the keys that all
 * of it sees and each query adds its own rest. */
static void value_group(attention_work *w, int first, int count, int64_t head, int from, int to) {
    int common = to;
    for (int i = first; i < first + count; i++) common = smallest(common, w->valid[i]);
    if (common < from) common = from;
    if (common > from && count == 6) value_sums_6(w, first, head, from, common);
    if (common > from && count == 3) value_sums_3(w, first, head, from, common);
    if (common > from && count == 2) value_sums_2(w, first, head, from, common);
    if (common > from && count == 1) value_sums_1(w, first, head, from, common);
    for (int i = first; i < first + count; i++)
        if (smallest(w->valid[i], to) > common) value_sums_1(w, i, head, common, smallest(w->valid[i], to));
}

/* Four queries go as two pairs: one alone has too few sums to hide the latency of an addition. */
static int group_size(int left) {
    if (left >= QUERY_GROUP) return QUERY_GROUP;
    return left == 4 || left == 2 ? 2 : left < 3 ? left : 3;
}

typedef void (*group_function)(attention_work *w, int first, int count, int64_t head, int from, int to);

/* Of the queries of each K/V head `queries` from number `first` on, with the keys [from, to). */
typedef struct {
    int first, queries, from, to;
} work_part;

/* Runs `group` for all heads, chunk by chunk. */
static void walk(attention_work *w, group_function group, work_part part) {
    int size = chunk_keys(w);
    for (int from = part.from; from < part.to; from += size) {
        for (int64_t head = 0; head < w->kv_heads; head++) {
            int first = (int)head * w->head_queries + part.first;
            for (int i = 0, n; i < part.queries; i += n) {
                n = group_size(part.queries - i);
                group(w, first + i, n, head, from, smallest(from + size, part.to));
            }
        }
    }
}

static void weigh_keys(attention_work *w) {
    for (int i = 0; i < (int)w->kv_heads * w->head_queries; i++)
        if (w->valid[i]) exponentiate(w->scores + i * SCORE_ROW, w->valid[i], w->scale, w->record[i]);
}

#endif
