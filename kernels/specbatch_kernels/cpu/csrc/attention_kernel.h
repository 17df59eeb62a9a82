/* Paged tree attention over a plan: walks tiles and blocks, folds block results in logical order. */
#ifndef SB_ATTENTION_KERNEL_H
#define SB_ATTENTION_KERNEL_H

#include "attention_block.h"
#include "kernels.h"

/* Everything one worker needs while it runs a plan. */
typedef struct {
    const sb_attention_plan *plan;
    const sb_attention_data *data;
    attention_work work;
    int64_t offsets[2][SB_BLOCK]; /* of the block at work and of the one after */
    float *block;                 /* [queries, record]: one block */
    float *folded;                /* [tile tokens, heads, record]: all blocks so far */
} attention_worker;

static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

typedef struct {
    size_t scores, query, record, valid, block, folded, total;
} attention_layout;

static attention_layout layout_of(const sb_attention_shape *s) {
    size_t queries = (size_t)(sb_tile_tokens(s) * s->heads), record = (size_t)sb_record(s) * sizeof(float);
    attention_layout l = {0};
    l.query = l.scores + round_up(queries * SCORE_ROW * sizeof(float));
    l.record = l.query + round_up(queries * sizeof(float *));
    l.valid = l.record + round_up(queries * sizeof(float *));
    l.block = l.valid + round_up(queries * sizeof(int));
    l.folded = l.block + round_up(queries * record);
    l.total = l.folded + round_up(queries * record);
    return l;
}

static size_t attention_scratch(const sb_attention_shape *shape) { return layout_of(shape).total; }

static attention_worker worker_of(const sb_attention_plan *plan, const sb_attention_data *data, char *scratch) {
    const sb_attention_shape *s = &plan->shape;
    attention_layout l = layout_of(s);
    attention_worker w = {
        .plan = plan, .data = data, .block = (float *)(scratch + l.block), .folded = (float *)(scratch + l.folded),
        .work = {
            .dim = s->head_dim, .kv_heads = s->kv_heads, .slot = s->kv_heads * s->head_dim, .scale = data->scale,
            .scores = (float *)(scratch + l.scores), .query = (const float **)(scratch + l.query),
            .record = (float **)(scratch + l.record), .valid = (int *)(scratch + l.valid),
        },
    };
    return w;
}

/* Cache offsets of the logical keys [start, start + count) of a token. */
static void locate_keys(int64_t *offsets, const sb_attention_shape *s, int64_t token, int64_t start, int count) {
    const int32_t *pages = s->page_table + s->token_row[token] * s->max_pages;
    const int32_t *extra = s->extra_positions + s->extra_offsets[token];
    int64_t context = s->context_len[token], slot_floats = s->kv_heads * s->head_dim;
    int j = 0;
    while (j < count && start + j < context) {
        int64_t page = (start + j) / s->page_size, in_page = (start + j) % s->page_size;
        int64_t slot = pages[page] * s->page_size + in_page, end = j + s->page_size - in_page;
        if (end > count) end = count;
        if (end > context - start) end = context - start;
        for (; j < end; j++) offsets[j] = slot++ * slot_floats;
    }
    for (; j < count; j++) {
        int64_t position = extra[start + j - context], page = position / s->page_size;
        offsets[j] = (pages[page] * s->page_size + position % s->page_size) * slot_floats;
    }
}

static int keys_in_block(int64_t keys, int64_t block) {
    int64_t left = keys - block * SB_BLOCK;
    return left < 0 ? 0 : left < SB_BLOCK ? (int)left : SB_BLOCK;
}

/* Result of one query over one block: kept for the second phase when the plan is split. */
static float *block_record(attention_worker *w, int64_t token, int64_t head, int64_t block, int query) {
    const sb_attention_plan *plan = w->plan;
    int64_t record = sb_record(&plan->shape);
    if (!plan->split) return w->block + query * record;
    return plan->partials + ((token * plan->shape.heads + head) * plan->max_blocks + block) * record;
}

/* Appends a block to what was folded before it.  Both sides are rescaled to their joint maximum. */
static void fold(float *restrict into, const float *restrict block, int64_t dim) {
    float top = block[0] > into[0] ? block[0] : into[0];
    v8 scale = v8_exp((v8){into[0] - top, block[0] - top});
    vt old = vt_set1(scale[0]), new = vt_set1(scale[1]);
    into[0] = top;
    into[1] = scale[0] * into[1] + scale[1] * block[1];
    for (int64_t d = SB_RECORD_HEAD; d < SB_RECORD_HEAD + dim; d += VT_LANES)
        vt_store(into + d, vt_fma(new, vt_load(block + d), old * vt_load(into + d)));
}

static void finish(const attention_worker *w, int64_t token, int64_t head, const float *folded) {
    const sb_attention_shape *s = &w->plan->shape;
    float *out = w->data->out + (token * s->heads + head) * s->head_dim;
    int empty = sb_num_keys(s, token) == 0;
    for (int64_t d = 0; d < s->head_dim; d++) out[d] = empty ? 0.0f : folded[SB_RECORD_HEAD + d] / folded[1];
}

static void gather_queries(attention_worker *w, const sb_tile *tile, int64_t block) {
    const sb_attention_shape *s = &w->plan->shape;
    int64_t group = s->heads / s->kv_heads;
    int n = 0;
    for (int64_t kv = 0; kv < s->kv_heads; kv++) {
        for (int64_t t = tile->first; t < tile->first + tile->count; t++) {
            int valid = keys_in_block(sb_num_keys(s, t), block);
            for (int64_t h = kv * group; h < (kv + 1) * group; h++, n++) {
                w->work.query[n] = w->data->q + t * w->data->q_stride + h * s->head_dim;
                w->work.record[n] = block_record(w, t, h, block, n);
                w->work.valid[n] = valid;
            }
        }
    }
    w->work.head_queries = (int)(tile->count * group);
}

static void fold_block(attention_worker *w, int64_t block) {
    const sb_attention_shape *s = &w->plan->shape;
    int64_t group = s->heads / s->kv_heads, record = sb_record(s), queries = w->work.head_queries;
    for (int64_t i = 0; i < s->kv_heads * queries; i++) {
        if (!w->work.valid[i]) continue;
        int64_t token = i % queries / group, head = i / queries * group + i % group;
        float *into = w->folded + (token * s->heads + head) * record;
        if (block == 0)
            memcpy(into, w->work.record[i], (size_t)record * sizeof(float));
        else
            fold(into, w->work.record[i], s->head_dim);
    }
}

/* The keys that tokens do not share come from lists of their own, which take turns behind the common keys. */
static void run_own_keys(attention_worker *w, const sb_tile *tile, int64_t block, int common, group_function group) {
    const sb_attention_shape *s = &w->plan->shape;
    int queries = (int)(s->heads / s->kv_heads);
    for (int t = 0; t < tile->count; t++) {
        int end = w->work.valid[t * queries];
        if (end <= common) continue;
        locate_keys(w->offsets[0] + common, s, tile->first + t, block * SB_BLOCK + common, end - common);
        w->work.keys.count = end;
        walk(&w->work, group, (work_part){t * queries, queries, common, end});
    }
}

/* What to fetch: keys of `token` from number `start` on, after its last those of `next` from `skip` on. */
typedef struct {
    int64_t token, start, next, skip;
} fetch_route;

/* One key is fetched for each of the `keys` of the block at work. */
static void aim_fetchers(attention_worker *w, fetch_route route, int keys) {
    const sb_attention_shape *s = &w->plan->shape;
    int64_t own = sb_num_keys(s, route.token) - route.start, other = sb_num_keys(s, route.next) - route.skip;
    int first = own < 0 ? 0 : own < keys ? (int)own : keys;
    int second = other < 0 ? 0 : other < keys - first ? (int)other : keys - first;
    locate_keys(w->offsets[1], s, route.token, route.start, first);
    locate_keys(w->offsets[1] + first, s, route.next, route.skip, second);
    fetcher f = {
        .left = {w->data->k_cache, w->offsets[1], first + second}, .piece = w->work.dim, .slot = w->work.slot,
    };
    w->work.next_keys = w->work.next_values = f;
    w->work.next_values.left.cache = w->data->v_cache;
}

static void run_tile_block(attention_worker *w, const sb_tile *tile, int64_t block, fetch_route route) {
    const sb_attention_shape *s = &w->plan->shape;
    int keys = keys_in_block(tile->keys, block), common = smallest(keys_in_block(tile->common, block), keys);
    if (!keys) return;
    aim_fetchers(w, route, keys);
    gather_queries(w, tile, block);
    locate_keys(w->offsets[0], s, tile->longest, block * SB_BLOCK, common);
    w->work.keys = (slot_list){w->data->k_cache, w->offsets[0], common};
    w->work.values = (slot_list){w->data->v_cache, w->offsets[0], common};
    work_part shared = {0, w->work.head_queries, 0, common};
    walk(&w->work, score_group, shared);
    if (common < keys) run_own_keys(w, tile, block, common, score_group);
    weigh_keys(&w->work);
    walk(&w->work, value_group, shared);
    if (common < keys) run_own_keys(w, tile, block, common, value_group);
    if (!w->plan->split) fold_block(w, block);
}

/* While a block is computed, what lies SB_BLOCK keys ahead is fetched: of this tile, then of the one that
 * this worker will get next if the workers keep taking turns. */
static void run_whole_tiles(attention_worker *w, sb_pool *pool) {
    const sb_attention_plan *plan = w->plan;
    int64_t heads = plan->shape.heads, record = sb_record(&plan->shape);
    for (int64_t i; (i = sb_pool_ticket(pool)) < plan->num_tiles;) {
        const sb_tile *tile = &plan->tiles[i];
        int64_t after = i + sb_pool_workers(pool);
        fetch_route route = {.token = tile->longest, .next = plan->tiles[after < plan->num_tiles ? after : i].longest};
        for (int64_t b = 0; b * SB_BLOCK < tile->keys; b++) {
            route.start = (b + 1) * SB_BLOCK;
            route.skip = route.start < tile->keys ? 0 : route.start - tile->keys;
            run_tile_block(w, tile, b, route);
        }
        for (int64_t r = 0; r < tile->count * heads; r++)
            finish(w, tile->first + r / heads, r % heads, w->folded + r * record);
    }
}

static void run_split_tiles(attention_worker *w, sb_pool *pool) {
    const sb_attention_plan *plan = w->plan;
    const sb_attention_shape *s = &plan->shape;
    int64_t record = sb_record(s), blocks = plan->max_blocks;
    for (int64_t i; (i = sb_pool_ticket(pool)) < plan->num_tiles * blocks;) {
        const sb_tile *tile = &plan->tiles[i / blocks];
        int64_t after = (i % blocks + sb_pool_workers(pool)) * SB_BLOCK;
        run_tile_block(w, tile, i % blocks, (fetch_route){tile->longest, after, tile->longest, tile->keys});
    }
    sb_pool_barrier(pool);
    for (int64_t token; (token = sb_pool_ticket(pool)) < s->tokens;) {
        int64_t keys = sb_num_keys(s, token);
        for (int64_t h = 0; h < s->heads; h++) {
            float *first = plan->partials + (token * s->heads + h) * blocks * record;
            for (int64_t b = 1; b * SB_BLOCK < keys; b++) fold(first, first + b * record, s->head_dim);
            finish(w, token, h, first);
        }
    }
}

static void attention(const sb_attention_plan *plan, const sb_attention_data *data, sb_pool *pool, int worker) {
    attention_worker w = worker_of(plan, data, sb_pool_scratch(pool, worker));
    if (plan->split)
        run_split_tiles(&w, pool);
    else
        run_whole_tiles(&w, pool);
}

#endif
